"""Movement of a model's parameters from look to look: layers that stop learning in the middle of a training."""

from __future__ import annotations

import numpy as np
from torch import nn

from autoopt.benchmark.fingerprint import Array, Coordinates
from autoopt.records.messages import Moved


class Movement:
    """Looks at sampled elements of every parameter, between steps and off the clock.

    Parameters that are spread over processes are not looked at: no element of them is here for sure.

    Args:
        model: whose trainable parameters are looked at.
    """

    def __init__(self, model: nn.Module) -> None:
        self._here = not any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
        self.moves: list[Moved] = []
        if not self._here:
            return
        self._coordinates = Coordinates(model)
        self._tensor = np.repeat(np.arange(len(self._coordinates.counts)), self._coordinates.counts)
        self._before, self._step = self._seen(), 0

    def look(self, step: int) -> None:
        """Notes which parameters have moved since the last look; ``step``: optimizer steps so far."""
        if not self._here or step <= self._step:
            return
        now, count = self._seen(), len(self._coordinates.counts)
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

    def _seen(self) -> Array:
        return self._coordinates.weights()
