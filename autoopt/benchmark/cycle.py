"""The cycle of a training: the number of steps after which its step times repeat.

A loader with W workers delivers in order, W batches at a time: one step waits and W - 1 do not. Work that comes once in
so many steps (logging, garbage collection, a learning-rate schedule) makes cycles likewise. A block of steps tells the
speed where it holds whole cycles.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

import numpy as np

WAITS = 0.02
"""Share of the seconds that training waits for data, from which on the loader's workers set the cycle. Below it their
bunches cost less than a block can show."""
REPEATS = 3
"""Times that a cycle must have been seen."""
EXPLAINED = 0.5
"""Autocorrelation from which on steps repeat: more than half of their variance comes back after so many steps."""
SURE = 3.0
"""Standard errors of an autocorrelation of independent steps that it must exceed besides: chance repeats few steps."""
LONGEST = 256
"""Steps: what repeats more rarely is a part of the scatter between blocks."""


def cycle_of(times: Sequence[float], workers: int, waiting: float) -> int:
    """Steps after which step times repeat; 1 where they do not.

    Args:
        times: seconds of each steady step.
        workers: of the training's loader.
        waiting: share of the steps' seconds that training waits for data.
    """
    found = period(times)
    bunch = workers if workers > 1 and waiting >= WAITS else 1
    both = lcm(found, bunch)
    return both if both <= LONGEST else max(found, bunch)


def period(times: Sequence[float]) -> int:
    """The shortest period of a series of step times, by its autocorrelation; 1 where it has none.

    Args:
        times: seconds of each step.
    """
    x = np.asarray(times, dtype=np.float64)
    longest = min(len(x) // REPEATS, LONGEST)
    if longest < 2:
        return 1
    x = x - x.mean()
    power = float(x @ x)
    if power <= 0:
        return 1
    lags = np.arange(1, longest + 1)
    # of the steps that both series hold, so that long lags are not taken for weak ones
    found = np.array([float(x[:-lag] @ x[lag:]) / power * len(x) / (len(x) - lag) for lag in lags])
    best = int(np.argmax(found[1:])) + 1
    drifts = found[0] >= found[best]  # a step is like its neighbor: nothing repeats
    if drifts or found[best] < max(EXPLAINED, SURE / len(x) ** 0.5):
        return 1
    return int(lags[next(index for index in range(1, best + 1) if found[index] >= 0.9 * found[best])])
