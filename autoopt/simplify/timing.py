"""Repeating a microbenchmark until its median is steady, within a limit of time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoopt.simplify.drift import TENSORS, ReferenceSpeed, normalized, sensitivity
from autoopt.simplify.stage_timings import Timing

STEADY = 0.02
SHORTEST = 5e-4
MOST = 1000


@dataclass(frozen=True)
class Microbenchmark:
    """A call to time, what is made ready before each repeat, and what ends it on a device."""

    call: Callable[[], Any]
    before: Callable[[], Any] | None = None
    wait: Callable[[], Any] | None = None


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile of one or more values."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def summary(
    values: list[float],
    *,
    readings: Sequence[float] = (),
    usual: float = TENSORS,
    cpu_seconds: float | None = None,
) -> Timing:
    """A timing from repeats of one thing, in seconds.

    Args:
        values: of each repeat.
        readings: of the speed reference beside each repeat; empty where they were not read.
        usual: sensitivity where the repeats do not tell it.
        cpu_seconds: of the calling thread.
    """
    degree = sensitivity(values, readings, usual) if readings else None
    if degree is not None:
        values = normalized(values, readings, degree)
    low, middle, high = quartiles(values)
    return Timing(
        seconds=middle,
        low=low,
        high=high,
        n=len(values),
        cpu_seconds=cpu_seconds,
        reference=statistics.median(readings) if readings else None,
        sensitivity=degree,
    )


def is_steady(values: list[float], least: int) -> bool:
    """Whether the median's own standard error is below ``STEADY`` of it."""
    if len(values) < least:
        return False
    low, middle, high = quartiles(values)
    return bool((high - low) / 1.349 * 1.253 / len(values) ** 0.5 <= STEADY * middle)


def repeat(
    call: Callable[[], Any],
    time_limit: float,
    *,
    before: Callable[[], Any] | None = None,
    wait: Callable[[], Any] | None = None,
    least: int = 5,
    most: int = MOST,
    reference: ReferenceSpeed | None = None,
    usual: float = TENSORS,
) -> Timing:
    """Times a call again and again: until the median is steady, the time is up or ``most`` is reached.

    With a reference all of the time is used: what is steady for a moment may be so at one speed alone.

    Args:
        call: what is timed. The first call does not count.
        time_limit: seconds for all of it; at least two calls are made however long they take.
        before: made ready before each repeat, not timed.
        wait: ends what ``call`` started (a device's synchronize), timed.
        reference: of speed, read beside each repeat, not timed.
        usual: sensitivity where the repeats do not tell it; of the part that a core works.

    A call far shorter than the clock's own cost is timed several at once.
    """
    start = time.perf_counter()
    cold = _once(call, before, wait, 1)[0]
    at_once = 1 if before else _several(cold)
    walls: list[float] = []
    cpus: list[float] = []
    readings: list[float] = []
    while not walls or (
        len(walls) < most and time.perf_counter() - start < time_limit and (reference or not is_steady(walls, least))
    ):
        wall, cpu = _read_beside(Microbenchmark(call, before, wait), at_once, reference, readings)
        walls.append(wall)
        cpus.append(cpu)
    share = min(1.0, sum(cpus) / max(sum(walls), 1e-12))
    return summary(walls, readings=readings, usual=usual * share, cpu_seconds=statistics.median(cpus))


def interleaved(
    microbenchmarks: list[Microbenchmark],
    time_limit: float,
    *,
    least: int = 8,
    most: int = MOST,
    derived: Sequence[Callable[[Sequence[float]], float]] = (),
    reference: ReferenceSpeed | None = None,
) -> list[Timing]:
    """Times several microbenchmarks in turn, so that a burst of the machine does not fall on one of them alone.

    Args:
        time_limit: seconds for all of them; at least two turns are made however long they take. Where one takes half of
            it, the first call of each, which is left out otherwise, is one of them: setting up is little beside it.
        derived: what follows from the seconds of one turn, such as a difference; each is a further timing, of 0 at
            least.
        reference: of speed, read beside each repeat, not timed.
    """
    start = time.perf_counter()
    readings: list[list[float]] = [[] for _ in microbenchmarks]
    colds = [_read_beside(one, 1, reference, seen) for one, seen in zip(microbenchmarks, readings, strict=True)]
    at_once = [1 if one.before else _several(wall) for one, (wall, _) in zip(microbenchmarks, colds, strict=True)]
    walls, cpus = [[wall] for wall, _ in colds], [[cpu] for _, cpu in colds]
    if time.perf_counter() - start <= time_limit / 2:
        for values in (*walls, *cpus, *readings):
            values.clear()
    while len(walls[0]) < 2 or (len(walls[0]) < most and time.perf_counter() - start < time_limit):
        if reference is None and all(is_steady(values, least) for values in walls):
            break
        for number, one in enumerate(microbenchmarks):
            wall, cpu = _read_beside(one, at_once[number], reference, readings[number])
            walls[number].append(wall)
            cpus[number].append(cpu)
    found = [
        summary(values, readings=seen, cpu_seconds=statistics.median(cpu))
        for values, cpu, seen in zip(walls, cpus, readings, strict=True)
    ]
    turns = list(zip(*walls, strict=True))
    by_turn = [statistics.fmean(seen) for seen in zip(*readings, strict=True)]
    return [*found, *(summary([max(0.0, derive(turn)) for turn in turns], readings=by_turn) for derive in derived)]


def _read_beside(
    one: Microbenchmark, at_once: int, reference: ReferenceSpeed | None, readings: list[float]
) -> tuple[float, float]:
    """One repeat, and the speed beside it: the mean of before and after."""
    if reference is None:
        return _once(one.call, one.before, one.wait, at_once)
    first = reference.now()
    seconds = _once(one.call, one.before, one.wait, at_once)
    readings.append((first + reference.now()) / 2)
    return seconds


def _several(seconds: float) -> int:
    return max(1, min(1000, int(SHORTEST / max(seconds, 1e-7))))


def _once(
    call: Callable[[], Any], before: Callable[[], Any] | None, wait: Callable[[], Any] | None, at_once: int
) -> tuple[float, float]:
    if before:
        before()
    if wait:
        wait()
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(at_once):
        call()
    if wait:
        wait()
    return (time.perf_counter() - wall) / at_once, (time.thread_time() - cpu) / at_once
