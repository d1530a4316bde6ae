"""Where the steady state begins, and the number of steps after which step times repeat; read in the step times.

Barrett et al., "Virtual machine warmup blows hot and cold" (OOPSLA 2017), cut a series into segments
at its change points and call it steady when the last segment is long enough, taking segments of
equal level as one. The same here on a robust scale: step times are grouped, each group's median
stands for it, and the change points are the cheapest cut under an absolute-deviation cost with a
penalty, so that a burst of foreign load neither ends nor begins a warm-up.

A loader with W workers delivers in order, W batches at a time: one step waits and W - 1 do not. Work that comes once in
so many steps (logging, garbage collection, a learning-rate schedule) makes cycles likewise. A block of steps shows the
speed where it holds whole cycles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_EQUAL = 0.10
"""Levels that differ by less than this are one level."""
WAITS = 0.02
"""Share of the seconds that training waits for data, from which on the loader's workers set the cycle. Below it their
bunches cost less than a block can show."""
SURE = 3.0
"""Standard errors of an autocorrelation of independent steps that it must exceed besides: chance repeats few steps."""
LONGEST = 256
"""Steps: what repeats more rarely is a part of the scatter between blocks."""


@dataclass(frozen=True)
class Steady:
    """``start``: index of the first steady step; ``seconds``: the mean steady step."""

    start: int
    seconds: float


def find_steady(times: Sequence[float], min_groups: int = 4) -> Steady | None:
    """The steady part at the end of a series of step times, in seconds; None while its end is not steady yet.

    ``min_groups``: groups that the steady part must fill, and it must be a third of the series' groups.
    """
    x = np.asarray(times, dtype=np.float64)
    if len(x) < 2 * min_groups:
        return None
    # few groups, so that searching for cuts takes no time
    size = max(1, -(-len(x) // 60))
    bounds = list(range(0, len(x), size))
    logs = np.log(np.maximum([np.median(x[at : at + size]) for at in bounds], 1e-9))
    cuts = change_points(logs)
    levels = [float(np.median(logs[a:b])) for a, b in cuts]
    # the lowest level that holds for a quarter of the second half; one group that is fast by chance is none
    half = cuts[-1][1] / 2
    held = [level for level, (a, b) in zip(levels, cuts, strict=True) if b - max(a, half) >= half / 4]
    lasting = min(held) if held else levels[-1]
    first = next(index for index, level in enumerate(levels) if level <= lasting + _EQUAL)
    groups = len(logs) - cuts[first][0]
    if groups < max(min_groups, len(logs) // 3) or levels[-1] < lasting - _EQUAL:
        return None
    start = bounds[cuts[first][0]]
    # A group's median hides a few slow steps in it, such as the very first.
    while start < len(x) - min_groups and x[start] > 1.5 * np.exp(lasting):
        start += 1
    return Steady(start, float(np.mean(x[start:])))


def change_points(values: Floats) -> list[tuple[int, int]]:
    """Cuts a series into segments of constant level, ``(from, to)`` of each, in order.

    The cost of a segment is its sum of absolute deviations from its median.
    """
    n = len(values)
    noise = max(float(np.median(np.abs(np.diff(values)))) if n > 1 else 0.0, 0.01)
    # a cut must save so many typical deviations per group, times the log of the number of groups
    penalty = 3.0 * noise * max(np.log(n), 1.0)
    cost = [[0.0] * (n + 1) for _ in range(n + 1)]
    for a in range(n):
        for b in range(a + 1, n + 1):
            part = values[a:b]
            cost[a][b] = float(np.abs(part - np.median(part)).sum())
    best = [0.0] + [float("inf")] * n
    came = [0] * (n + 1)
    for b in range(1, n + 1):
        for a in range(b):
            total = best[a] + cost[a][b] + (penalty if a else 0.0)
            if total < best[b]:
                best[b], came[b] = total, a
    segments: list[tuple[int, int]] = []
    end = n
    while end:
        segments.insert(0, (came[end], end))
        end = came[end]
    return segments


def warmup_excess(times: Sequence[float], steady: Steady) -> float:
    """Seconds that the steps before the steady state took beyond what steady ones would have, not below 0."""
    before = sum(times[: steady.start])
    return max(before - steady.start * steady.seconds, 0.0)


def excess(times: Sequence[float]) -> float:
    """Seconds of warming up in a whole run: what its first steps took beyond the steady ones."""
    if len(times) < 2:
        return 0.0
    steady = find_steady(times) or Steady(len(times) // 2, statistics.median(times[len(times) // 2 :]))
    return warmup_excess(times, steady)


def cycle_of(times: Sequence[float], workers: int, waiting: float) -> int:
    """Steps after which step times repeat; 1 where they do not.

    ``waiting``: share of the steps' seconds that training waits for data.
    """
    found = period(times)
    bunch = workers if workers > 1 and waiting >= WAITS else 1
    both = lcm(found, bunch)
    return both if both <= LONGEST else max(found, bunch)


def period(times: Sequence[float]) -> int:
    """The shortest period of a series of step times, by its autocorrelation; 1 where it has none."""
    x = np.asarray(times, dtype=np.float64)
    # a cycle must have been seen three times
    longest = min(len(x) // 3, LONGEST)
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
    # more than half of the variance comes back after so many steps
    if drifts or found[best] < max(0.5, SURE / len(x) ** 0.5):
        return 1
    return int(lags[next(index for index in range(1, best + 1) if found[index] >= 0.9 * found[best])])


def usual_step(times: Sequence[float], cycle: int) -> float:
    """Seconds of a step of the middle cycle: of any other one, too, but for what comes once in many cycles.

    What is no whole cycle at the end of the times is left out, unless there is none.
    """
    cycle = min(cycle, len(times))
    return statistics.median(sum(times[at : at + cycle]) for at in range(0, len(times) - cycle + 1, cycle)) / cycle


def epoch_start(openings: Sequence[float], loader: Any, usual: float) -> float | None:
    """Seconds with which a later epoch begins, beyond the usual wait for a batch; None where there are no epochs.

    Before a second epoch was seen the first one's start stands for it, unless its workers stay.
    """
    if not openings:
        return None
    if len(openings) == 1 and (loader.persistent_workers or not loader.num_workers):
        return 0.0
    return max(statistics.median(openings[1:] or openings) - usual, 0.0)
