"""Repeating a stub until its median is steady, within a box of time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoopt.simplify.pace import TENSORS, Pace, evened, sensitivity
from autoopt.simplify.survey import Timing

STEADY = 0.02
SHORTEST = 5e-4
MOST = 1000


@dataclass(frozen=True)
class Stub:
    """What is timed, what is made ready before each repeat, and what ends it on a device."""

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
    cold: float | None = None,
    *,
    paces: Sequence[float] = (),
    usual: float = TENSORS,
    cpu_seconds: float | None = None,
) -> Timing:
    """A timing from repeats of one thing, in seconds.

    Args:
        values: of each repeat.
        cold: of the first call.
        paces: of the machine beside each repeat; empty where they were not read.
        usual: sensitivity where the repeats do not tell it.
        cpu_seconds: of the calling thread.
    """
    degree = sensitivity(values, paces, usual) if paces else None
    if degree is not None:
        values = evened(values, paces, degree)
    low, middle, high = quartiles(values)
    return Timing(
        seconds=middle,
        low=low,
        high=high,
        n=len(values),
        cold_seconds=cold,
        cpu_seconds=cpu_seconds,
        pace=statistics.median(paces) if paces else None,
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
    box: float,
    *,
    before: Callable[[], Any] | None = None,
    wait: Callable[[], Any] | None = None,
    least: int = 5,
    most: int = MOST,
    pace: Pace | None = None,
    usual: float = TENSORS,
) -> Timing:
    """Times a call again and again: until the median is steady, the box is full or ``most`` is reached.

    With a pace the box is always filled: what is steady for a moment may be so at one pace alone.

    Args:
        call: what is timed. The first call is kept apart as cold.
        box: seconds for all of it; at least two calls are made however long they take.
        before: made ready before each repeat, not timed.
        wait: ends what ``call`` started (a device's synchronize), timed.
        pace: read beside each repeat, not timed.
        usual: sensitivity where the repeats do not tell it; of the part that a core works.

    A call far shorter than the clock's own cost is timed several at once.
    """
    start = time.perf_counter()
    cold = _once(call, before, wait, 1)[0]
    at_once = 1 if before else _several(cold)
    walls: list[float] = []
    cpus: list[float] = []
    paces: list[float] = []
    while not walls or (
        len(walls) < most and time.perf_counter() - start < box and (pace or not is_steady(walls, least))
    ):
        wall, cpu = _paced(Stub(call, before, wait), at_once, pace, paces)
        walls.append(wall)
        cpus.append(cpu)
    share = min(1.0, sum(cpus) / max(sum(walls), 1e-12))
    return summary(walls, cold, paces=paces, usual=usual * share, cpu_seconds=statistics.median(cpus))


def interleaved(
    stubs: list[Stub],
    box: float,
    *,
    least: int = 8,
    most: int = MOST,
    derived: Sequence[Callable[[Sequence[float]], float]] = (),
    pace: Pace | None = None,
) -> list[Timing]:
    """Times several stubs in turn, so that a burst of the machine does not fall on one of them alone.

    Args:
        box: seconds for all of them; at least two turns are made however long they take.
        derived: what follows from the seconds of all stubs in one turn, such as a difference; each is a further
            timing, of 0 at least.
        pace: read beside each repeat, not timed.
    """
    start = time.perf_counter()
    colds = [_once(stub.call, stub.before, stub.wait, 1)[0] for stub in stubs]
    at_once = [1 if stub.before else _several(cold) for stub, cold in zip(stubs, colds, strict=True)]
    walls: list[list[float]] = [[] for _ in stubs]
    cpus: list[list[float]] = [[] for _ in stubs]
    paces: list[list[float]] = [[] for _ in stubs]
    while len(walls[0]) < 2 or (len(walls[0]) < most and time.perf_counter() - start < box):
        if pace is None and all(is_steady(values, least) for values in walls):
            break
        for number, stub in enumerate(stubs):
            wall, cpu = _paced(stub, at_once[number], pace, paces[number])
            walls[number].append(wall)
            cpus[number].append(cpu)
    found = [
        summary(values, cold, paces=seen, cpu_seconds=statistics.median(cpu))
        for values, cold, cpu, seen in zip(walls, colds, cpus, paces, strict=True)
    ]
    turns = list(zip(*walls, strict=True))
    by_turn = [statistics.fmean(seen) for seen in zip(*paces, strict=True)]
    return [*found, *(summary([max(0.0, derive(turn)) for turn in turns], paces=by_turn) for derive in derived)]


def _paced(stub: Stub, at_once: int, pace: Pace | None, paces: list[float]) -> tuple[float, float]:
    """One repeat, and the machine's pace beside it: the mean of before and after."""
    if pace is None:
        return _once(stub.call, stub.before, stub.wait, at_once)
    first = pace.now()
    seconds = _once(stub.call, stub.before, stub.wait, at_once)
    paces.append((first + pace.now()) / 2)
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
