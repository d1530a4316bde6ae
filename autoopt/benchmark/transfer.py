"""Batches to the device: any nesting of tensors, in place of the user's ``.to(device)``."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

Move = Callable[[Any], Any]


def mover(device: torch.device, *, non_blocking: bool = False) -> Move | None:
    """A function that puts a batch on the device; None where batches are there already (the CPU)."""
    if device.type == "cpu":
        return None

    def move(batch: Any) -> Any:
        return mapped(
            batch,
            lambda tensor: tensor.to(device, non_blocking=non_blocking),
            lambda whole: by_itself(whole, device, non_blocking),
        )

    return move


def by_itself(batch: Any, device: torch.device, non_blocking: bool = False) -> Any:
    """A batch that knows its own way to a device, there: a graph, a packed sequence. The one on the host stays."""
    try:
        return copy.copy(batch).to(device, non_blocking=non_blocking)
    except TypeError:
        return copy.copy(batch).to(device)


def mapped(batch: Any, change: Callable[[torch.Tensor], torch.Tensor], whole: Move | None = None) -> Any:
    """The same structure with each tensor changed.

    Args:
        whole: for objects with a ``to`` of their own, mappings apart; their parts are changed where None.
    """
    if isinstance(batch, torch.Tensor):
        return change(batch)
    if whole is not None and not isinstance(batch, Mapping) and callable(getattr(batch, "to", None)):
        return whole(batch)
    if isinstance(batch, Mapping):
        items = {key: mapped(value, change, whole) for key, value in batch.items()}
        try:
            return type(batch)(items)  # type: ignore[call-arg]
        except TypeError:
            return items
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change, whole) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(mapped(value, change, whole) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: mapped(getattr(batch, f.name), change, whole) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch
