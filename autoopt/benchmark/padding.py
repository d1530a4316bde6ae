"""How much of a batch of sequences is padding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from autoopt.benchmark.contents import tensors

MASKS = ("attention_mask", "padding_mask", "mask")
LEAST_WIDTH = 8
"""Rows of fewer ids than this are no sequences."""


def padding_share(batches: Iterable[Any]) -> float | None:
    """Share of padding in the sequences of some batches.

    An attention mask tells it; without one, what rows of ids end with: runs of the number that most rows end with.

    Returns:
        Between 0 and 1; None where the batches hold neither masks nor rows of ids.
    """
    padded = whole = 0
    for batch in batches:
        found = list(tensors(batch))
        rows = [(tensor == 0) for path, tensor in found if _is_mask(path, tensor)]
        rows = rows[:1] or [ending(tensor) for _, tensor in found if is_ids(tensor)][:1]
        for each in rows:
            padded += int(each.sum())
            whole += each.numel()
    return padded / whole if whole else None


def _is_mask(path: str, tensor: torch.Tensor) -> bool:
    return tensor.ndim == 2 and any(path.endswith(f"['{name}']") for name in MASKS)


def is_ids(tensor: torch.Tensor) -> bool:
    """Whether a tensor may hold rows of token ids."""
    return tensor.ndim == 2 and tensor.dtype in (torch.int64, torch.int32) and tensor.shape[1] >= LEAST_WIDTH


def ending(ids: torch.Tensor) -> torch.Tensor:
    """Which places of rows belong to a run of two and more at their end of what most rows end with."""
    same = ids == ids[:, -1].mode().values
    run = same.flip(1).cumprod(1).flip(1).bool()
    return run & (run.sum(1, keepdim=True) > 1)
