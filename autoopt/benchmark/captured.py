"""The losses of a run of steps, read seldom: reading one in every short step costs such a step a per cent."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Loss = torch.Tensor | float

_HELD = 32


class Captured:
    """Takes the loss of each step as it comes.

    On the CPU the losses of short steps are held, as they are with their graph (whose tensors are freed
    already), and some are read together; those of long steps are read at once. Elsewhere reading
    one would wait for the device: copies are held there until the end (a replayed CUDA graph writes the
    next loss to the same place).

    Args:
        on_cpu: where the losses are.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self._read: list[Loss] = []
        self._held: list[torch.Tensor] = []

    def __len__(self) -> int:
        return len(self._read) + len(self._held)

    def add(self, loss: torch.Tensor, short: bool = False) -> None:
        """The loss of one more step; ``short``: of a step in which reading it would tell."""
        if not self._on_cpu:
            self._read.append(loss.detach().clone())
            return
        self._held.append(loss)
        if not short or len(self._held) >= _HELD:
            self._read += [held.item() for held in self._held]
            self._held.clear()

    def losses(self) -> tuple[float | None, ...]:
        """All of them, by step; None where one is not finite."""
        return finite_losses([*self._read, *self._held])


def finite_losses(losses: Sequence[Loss]) -> tuple[float | None, ...]:
    """Losses as numbers, read from the device at once; None where not finite."""
    if not losses:
        return ()
    tensors = [loss.detach().reshape(()).float() for loss in losses if isinstance(loss, torch.Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    values = [next(read) if isinstance(loss, torch.Tensor) else loss for loss in losses]
    return tuple(value if math.isfinite(value) else None for value in values)
