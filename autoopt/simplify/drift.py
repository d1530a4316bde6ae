"""Drift of the machine's speed: a reference read next to whatever is timed, and timings normalized to one speed.

A shared machine's cores change their speed by up to 2.5, for tenths of a second to many seconds, without a process
that could be blamed and without stolen time: neighbours on the same silicon, clocks. What was timed in one such
stretch says nothing of a step that ran in another. So a fixed piece of Python is timed between the repeats: its CPU
seconds are the *reference* (more is slower). Work follows the reference to its own degree, its *sensitivity*: Python
wholly, small tensor operators by half, copies of memory hardly; where the repeats saw several speeds they tell it
themselves.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.warmup import for_seconds, run_block
from autoopt.records.messages import Block
from autoopt.simplify.stage_timings import InputTimings, StageTimings, Timing, scaled

FRESH = 0.05
"""Seconds for which a reading stands; levels hold for several times as long."""
SETTLED = 2.5e-3
"""Seconds of plain work after which a core's clock has forgotten the wide vector units, which lower it."""
SAMPLES, TENSORS = 0.7, 0.4
"""Sensitivities of work of which nothing is known: preparing samples is mostly Python; large operators follow by a
third, small ones by two thirds."""
_TOLD = 0.25
"""Relative difference of two readings from which on repeats tell their sensitivity about as well as the usual does:
with fewer than that between them a fit said 0 of plain Python."""


def reference_seconds() -> float:
    """CPU seconds of a fixed piece of Python, the shortest of several: interrupts and vector clocks fall on some."""
    end, best = time.perf_counter() + SETTLED, _reference()
    while time.perf_counter() < end:
        best = min(best, _reference())
    return best


def _reference() -> float:
    start, total = time.thread_time(), 0
    for number in range(2_000):
        total += number * number
    return time.thread_time() - start


class ReferenceSpeed:
    """Readings of the machine's speed, each kept for a moment."""

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


def sensitivity(seconds: Sequence[float], readings: Sequence[float], usual: float) -> float:
    """How far repeats follow the reference: relative change of seconds over relative change of it, at their medians.

    The median of the repeats in the fastest quarter next to that of the slowest, so that a burst, or a reading that
    fell on a change, has no say. Where all saw one speed they tell nothing, and the usual stands.
    """
    middle, typical = statistics.median(seconds), statistics.median(readings)
    if len(seconds) < 8 or middle <= 0:  # too few
        return usual
    ordered = sorted(zip(readings, seconds, strict=True))
    quarter = len(ordered) // 4
    fast, slow = ordered[:quarter], ordered[-quarter:]
    difference = (_middle(slow, 0) - _middle(fast, 0)) / typical
    change = (_middle(slow, 1) - _middle(fast, 1)) / middle
    reported = change / difference if difference > 0 else 0.0
    trust = difference**2 / (difference**2 + _TOLD**2)
    return min(1.0, max(0.0, trust * reported + (1 - trust) * usual))


def _middle(pairs: Sequence[tuple[float, float]], which: int) -> float:
    return statistics.median(pair[which] for pair in pairs)


def normalized(seconds: Sequence[float], readings: Sequence[float], degree: float) -> list[float]:
    """The repeats as they would have been at the median of their readings."""
    middle, typical = statistics.median(seconds), statistics.median(readings)
    return [
        max(0.0, value - degree * middle * (reading / typical - 1.0))
        for value, reading in zip(seconds, readings, strict=True)
    ]


def normalized_to_running(timings: StageTimings) -> StageTimings:
    """Every stage as it would have been at the speed of the running steps, which is ``timings.reference``.

    All stays as it was where that is not known, and what was timed without a reading (a device) in any case.
    """
    reference = timings.reference
    if reference is None:
        return timings
    found = _brought(timings, reference)
    deeper = {
        stage: scaled(chain, ratio(getattr(timings, stage, None), reference)) for stage, chain in timings.deeper.items()
    }
    inputs = timings.inputs
    below = {
        "deeper": scaled(inputs.deeper, ratio(inputs.sample, reference)),
        "collating": scaled(inputs.collating, ratio(inputs.collate, reference)),
    }
    changed = inputs.model_copy(update={**_brought(inputs, reference), **below})
    overlaps = tuple(_at(one, reference) for one in timings.overlaps)
    found |= {"inputs": changed, "deeper": deeper, "overlaps": overlaps}
    return timings.model_copy(update=found)


def ratio(timing: Timing | None, reference: float) -> float:
    """Seconds at that speed over seconds as they were measured."""
    if timing is None or not timing.reference or timing.sensitivity is None:
        return 1.0
    return 1.0 + timing.sensitivity * (reference / timing.reference - 1.0)


def _brought(of: StageTimings | InputTimings, reference: float) -> dict[str, Any]:
    return {name: _at(value, reference) for name, value in vars(of).items() if isinstance(value, Timing)}


def _at(timing: Timing, reference: float) -> Timing:
    """A timing at another speed: a core's work changes with it, and waiting does not."""
    times = ratio(timing, reference)
    if times == 1.0:
        return timing
    change = timing.seconds * (times - 1.0)
    cpu = None if timing.cpu_seconds is None else max(0.0, timing.cpu_seconds + change)
    changed = {"seconds": timing.seconds + change, "cpu_seconds": cpu, "reference": reference}
    return timing.model_copy(update=changed)


def running_block(
    training: LiveTraining,
    seconds: float,
    min_steps: int,
    ramp_seconds: float = 0.0,
) -> tuple[Block, float | None]:
    """A block of steps and the mean reference between them, whose seconds are not the block's.

    No reference is read on a device and for compiled steps.
    """
    if training.device.kind != "cpu" or training.setup.compile is not None:
        return run_block(training, for_seconds(seconds, min_steps), ramp_seconds=ramp_seconds), None
    # where workers go on in the meantime, the time that reading takes is not theirs
    reference = ReferenceSpeed(fresh=0.25 if training.loader.loader.num_workers else FRESH)
    readings = [reference.now()]
    spent: list[float] = []
    total = 0.0

    def enough(done: int, elapsed: float) -> bool:
        nonlocal total
        if done >= min_steps and elapsed - total >= seconds:
            return True
        start = time.perf_counter()
        readings.append(reference.now())
        spent.append(time.perf_counter() - start)
        total += spent[-1]
        return False

    block = run_block(training, enough, ramp_seconds=ramp_seconds)
    return without(block, spent), statistics.fmean(readings)


def without(block: Block, spent: list[float]) -> Block:
    """A block without the seconds after each of its steps but the last that were not training."""
    total = sum(spent)
    stages = dict(block.stage_seconds)
    if "data" in stages:  # what follows a step is the next one's wait for data
        stages["data"] = max(0.0, stages["data"] - total)
    steps = [max(0.0, step - extra) for step, extra in zip(block.step_seconds, (0.0, *spent), strict=False)]
    return block.model_copy(
        update={"seconds": block.seconds - total, "stage_seconds": stages, "step_seconds": tuple(steps)}
    )


def whole(*parts: tuple[Block, float | None]) -> tuple[Block, float | None]:
    """Blocks as one, and the reference at its mean step; None where one of them had no reading."""
    block = functools.reduce(joined, (part for part, _ in parts))
    readings = [reading for _, reading in parts if reading is not None]
    if len(readings) < len(parts):
        return block, None
    weights = [part.steps for part, _ in parts]
    return block, sum(value * steps for value, steps in zip(readings, weights, strict=True)) / max(sum(weights), 1)


def joined(first: Block, second: Block) -> Block:
    """Two blocks as one; memory is the first's, since microbenchmarks lay between them."""
    stages = {**first.stage_seconds}
    for name, seconds in second.stage_seconds.items():
        stages[name] = stages.get(name, 0.0) + seconds
    more: dict[str, Any] = {
        name: getattr(first, name) + getattr(second, name)
        for name in ("steps", "seconds", "step_seconds", "losses", "allocation_retries", "recompilations",
                     "late_seconds")
    }  # fmt: skip
    unsure = ("samples", "cpu_seconds", "foreign_cpu_seconds", "page_faults", "stalled_seconds", "worker_cpu_seconds")
    for name in unsure:
        both = (getattr(first, name), getattr(second, name))
        more[name] = None if None in both else sum(both)
    return first.model_copy(update={**more, "stage_seconds": stages})
