"""How fast the machine is just now, read beside whatever is timed.

A shared machine's cores change their speed by up to 2.5, for tenths of a second to many seconds, without a process
that could be blamed and without stolen time: neighbours on the same silicon, clocks. What was timed in one such
stretch says nothing of a step that ran in another. So a fixed piece of Python is timed between the repeats: its CPU
seconds are the *pace* (more is slower). Work follows the pace to its own degree, its *sensitivity*: Python wholly,
small tensor operators by half, copies of memory hardly; where the repeats saw several paces they tell it themselves.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

FRESH = 0.05
"""Seconds for which a reading stands; levels hold for several times as long."""
SETTLED = 2.5e-3
"""Seconds of plain work after which a core's clock has forgotten the wide vector units, which lower it."""
SAMPLES, TENSORS = 0.7, 0.4
"""Sensitivities of work of which nothing is known: preparing samples is mostly Python; large operators follow by a
third, small ones by two thirds."""
_TOLD = 0.25
"""Relative difference of two paces from which on repeats tell their sensitivity about as well as the usual does: with
fewer than that between them a fit said 0 of plain Python."""
_ENOUGH = 8
"""Repeats below which they tell nothing."""
_ROUNDS = 2_000


def reference_seconds(clock: Callable[[], float] = time.perf_counter) -> float:
    """CPU seconds of a fixed piece of Python, the shortest of several: interrupts and vector clocks fall on some."""
    end, best = clock() + SETTLED, _reference()
    while clock() < end:
        best = min(best, _reference())
    return best


def _reference() -> float:
    start, total = time.thread_time(), 0
    for number in range(_ROUNDS):
        total += number * number
    return time.thread_time() - start


class Pace:
    """Readings of the machine's pace, each kept for a moment.

    Args:
        probe: CPU seconds of the reference.
        clock: says when a reading is too old.
        fresh: seconds for which one stands.
    """

    def __init__(
        self,
        probe: Callable[[], float] = reference_seconds,
        clock: Callable[[], float] = time.perf_counter,
        fresh: float = FRESH,
    ) -> None:
        self._probe, self._clock, self._fresh = probe, clock, fresh
        self._latest, self._at = 0.0, float("-inf")

    def now(self) -> float:
        """Seconds of the reference, at most a moment old."""
        if self._clock() - self._at > self._fresh:
            self._latest = self._probe()
            self._at = self._clock()
        return self._latest


def sensitivity(seconds: Sequence[float], paces: Sequence[float], usual: float) -> float:
    """How far repeats follow the pace: relative change of seconds over relative change of pace, at their medians.

    Args:
        seconds: of the repeats.
        paces: beside each of them.
        usual: what is said where they tell nothing.

    The median of the repeats in the fastest quarter beside that of the slowest, so that a burst, or a reading that
    fell on a change, has no say. Where all saw one pace they tell nothing, and the usual stands.
    """
    middle, typical = statistics.median(seconds), statistics.median(paces)
    if len(seconds) < _ENOUGH or middle <= 0:
        return usual
    ordered = sorted(zip(paces, seconds, strict=True))
    quarter = len(ordered) // 4
    fast, slow = ordered[:quarter], ordered[-quarter:]
    apart = (_middle(slow, 0) - _middle(fast, 0)) / typical
    change = (_middle(slow, 1) - _middle(fast, 1)) / middle
    told = change / apart if apart > 0 else 0.0
    trust = apart**2 / (apart**2 + _TOLD**2)
    return min(1.0, max(0.0, trust * told + (1 - trust) * usual))


def _middle(pairs: Sequence[tuple[float, float]], which: int) -> float:
    return statistics.median(pair[which] for pair in pairs)


def evened(seconds: Sequence[float], paces: Sequence[float], degree: float) -> list[float]:
    """What the repeats would have taken at the median of their paces.

    Args:
        degree: their sensitivity.
    """
    middle, typical = statistics.median(seconds), statistics.median(paces)
    return [
        max(0.0, value - degree * middle * (pace / typical - 1.0)) for value, pace in zip(seconds, paces, strict=True)
    ]
