"""Batches to the device: any nesting of tensors, in place of the user's ``.to(device)``, or ahead on a stream."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Move = Callable[[Any], Any]
END = object()
"""In place of a batch where there is no further one."""


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


class CopyAhead:
    """A queue of batches on their way to the device.

    Args:
        device: a CUDA device.
        move: a host batch to the device.
        depth: batches that are on their way at the most.
    """

    def __init__(self, device: torch.device, move: Callable[[Any], Any], depth: int) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._move = move
        self._depth = depth
        self._ready: deque[tuple[Any, Any, Any]] = deque()
        self._ended = False

    def fill(self, batches: Iterator[Any], depth: int | None = None) -> None:
        """Reads and copies until so many batches are on their way."""
        while not self._ended and len(self._ready) < (depth or self._depth):
            batch = next(batches, END)
            if batch is END:
                self._ended = True
                return
            with torch.cuda.stream(self._stream):
                moved = self._move(batch)
                event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record()
            self._ready.append((moved, event, batch))  # the source lives until its copy is done

    def take(self) -> Any:
        """The next batch, safe to use on the stream that computes; ``END`` where there is none."""
        if not self._ready:
            self._ended = False
            return END
        moved, event, _ = self._ready.popleft()
        current = torch.cuda.current_stream()
        current.wait_event(event)

        def used(part: Any) -> Any:  # a tensor, or an object that moved by itself
            if hasattr(part, "record_stream") and getattr(part, "is_cuda", True):
                part.record_stream(current)
            return part

        mapped(moved, used, used)
        return moved
