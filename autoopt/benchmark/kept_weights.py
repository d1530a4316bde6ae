"""Weights of a training: kept in files at its start, middle and end, and how far they move from look to look."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

from autoopt.benchmark.fingerprint import Coordinates
from autoopt.benchmark.live import LiveTraining
from autoopt.records.messages import Moved

APART = 0.1
"""Share of the training from its start and its end, from which on weights between are others than at those."""


class KeptWeights:
    """Writes a training's weights at its start, after its evaluations 1, 2, 4, 8 ..., and at its end."""

    def __init__(self, training: LiveTraining, directory: str) -> None:
        self._training, self._directory = training, Path(directory)
        size = sum(value.numel() * value.element_size() for value in training.model.state_dict().values())
        # writing a larger model's weights would take longer than what is learnt there
        self._wanted = size <= 4 * 2**30 and training.setup.distributed.fully_sharded is None
        self._steps: list[int] = []
        if self._wanted:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._keep()

    def evaluated(self, evaluations: int) -> None:
        """Called after each evaluation; keeps where their number is a power of two."""
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


class Movement:
    """Reads sampled elements of every parameter, between steps and off the clock.

    Parameters that are spread over processes are not examined: no element of them is here for sure.
    """

    def __init__(self, model: nn.Module) -> None:
        self._here = not any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
        self.moves: list[Moved] = []
        if not self._here:
            return
        self._coordinates = Coordinates(model)
        self._tensor = np.repeat(np.arange(len(self._coordinates.counts)), self._coordinates.counts)
        self._before, self._step = self._coordinates.weights(), 0

    def look(self, step: int) -> None:
        """Notes which parameters have moved since the last look; ``step``: optimizer steps so far."""
        if not self._here or step <= self._step:
            return
        now, count = self._coordinates.weights(), len(self._coordinates.counts)
        moved = np.bincount(self._tensor, now != self._before, count)
        still = np.flatnonzero(moved == 0).tolist()
        slow = 2 * moved <= np.array(self._coordinates.counts)
        self.moves.append(
            Moved(
                first_step=self._step,
                step=step,
                parameters=count,
                still=tuple(still),
                names=tuple(self._coordinates.names[index] for index in still),
                slow=tuple(np.flatnonzero(slow).tolist()),
            )
        )
        self._before, self._step = now, step
