"""Weights of a training at its start, middle and end, kept in files: gradients are compared there."""

from __future__ import annotations

from pathlib import Path

import torch

from autoopt.benchmark.live import LiveTraining

MOST_BYTES = 4 * 2**30
"""A larger model's weights are not kept: writing them would take longer than what is learnt there."""

APART = 0.1
"""Share of the training from its start and its end, from which on weights between are others than at those."""


class KeptWeights:
    """Writes a training's weights at its start, after its evaluations 1, 2, 4, 8 ..., and at its end.

    Args:
        training: at its start.
        directory: made where it is missing.
    """

    def __init__(self, training: LiveTraining, directory: str) -> None:
        self._training, self._directory = training, Path(directory)
        size = sum(value.numel() * value.element_size() for value in training.model.state_dict().values())
        self._wanted = size <= MOST_BYTES and training.setup.distributed.fully_sharded is None
        self._steps: list[int] = []
        if self._wanted:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._keep()

    def evaluated(self, evaluations: int) -> None:
        """Told after each evaluation; keeps where their number is a power of two."""
        if self._wanted and evaluations & (evaluations - 1) == 0:
            self._keep()

    def _keep(self) -> None:
        step = self._training.steps
        if step in self._steps:
            return
        torch.save(self._training.model.state_dict(), self._file(step))
        self._steps.append(step)

    def _file(self, step: int) -> Path:
        return self._directory / f"step-{step}.pt"

    def files(self) -> tuple[str, ...]:
        """Those of start, middle and end, as far as they are not the same; the others are removed."""
        if not self._wanted:
            return ()
        self._keep()
        first, last = self._steps[0], self._steps[-1]
        middle = min(self._steps, key=lambda step: abs(step - (first + last) / 2))
        apart = min(middle - first, last - middle) >= APART * (last - first)
        kept = {first, middle, last} if apart else {first, last}
        for step in self._steps:
            if step not in kept:
                self._file(step).unlink(missing_ok=True)
        self._steps = sorted(kept)
        return tuple(str(self._file(step)) for step in self._steps)
