"""The losses of a run of steps: each one, at next to no cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

Loss = torch.Tensor | float


class LossRecorder:
    """Takes the loss of each step as it comes.

    On the CPU it is read at once, by the one way that calls no operator of torch (``item`` costs a short step most of
    a per cent), and not held: how long a loop holds a loss decides what memory its next step gets.
    Elsewhere reading it would wait for the device: copies are held there until the end (a replayed CUDA graph
    writes the next loss to the same place).

    Args:
        on_cpu: where the losses are.

    Attributes:
        taken: numbers on the CPU, tensors elsewhere.
    """

    def __init__(self, on_cpu: bool) -> None:
        self._on_cpu = on_cpu
        self.taken: list[Loss] = []

    def __len__(self) -> int:
        return len(self.taken)

    def add(self, loss: torch.Tensor) -> None:
        """The loss of one more step."""
        if self._on_cpu:
            self.extend([loss.tolist()])
        else:
            self.taken.append(loss.detach().clone())

    def extend(self, read: Iterable[Any]) -> None:
        """The losses of more steps as ``tolist`` gave them: numbers, or lists around one number."""
        self.taken += [value if type(value) is float else _number(value) for value in read]

    def losses(self) -> tuple[float | None, ...]:
        """All of them, by step; None where one is not finite."""
        return finite_losses(self.taken)


def _number(value: Any) -> float:
    while isinstance(value, list):
        (value,) = value
    return float(value)


def finite_losses(losses: Sequence[Loss]) -> tuple[float | None, ...]:
    """Losses as numbers, read from the device at once; None where not finite."""
    if not losses:
        return ()
    tensors = [loss.detach().reshape(()).float() for loss in losses if isinstance(loss, torch.Tensor)]
    read = iter(torch.stack(tensors).tolist() if tensors else ())
    values = [next(read) if isinstance(loss, torch.Tensor) else loss for loss in losses]
    return tuple(value if math.isfinite(value) else None for value in values)
