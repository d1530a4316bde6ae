"""Cache effects: what stages cost in the step's own order, over what they cost in a loop of their own.

A loop of its own finds caches, branch tables and threads as it left them. In a running step whatever is small finds
them as another stage left them, or asleep: batches of a few microseconds a sample take up to twice as long between two
training steps as one after the other, small steps a third longer after a pause, and threads that went to sleep must be
woken. So both are timed in the step's own order beside the same thing repeated at once, and their ratio is kept: the
cold ratio of batches and the wake-up ratio of steps. It is a mean over a median: what happens in one step of ten is
part of a step's mean, and of no microbenchmark's median.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from autoopt.benchmark.live import LiveTraining
from autoopt.records import JsonDict
from autoopt.simplify.batches import fresh_loader
from autoopt.simplify.isolation import in_child
from autoopt.simplify.stage_timings import InputTimings

LEAST = 20
"""Turns below which a mean says nothing; what is so long that fewer fit the time_limit warms its own caches."""
MOST = 2000
_HIGHEST = 10.0
_SHORTEST_SLEEP = 5e-5


def cache_effects_of(
    training: LiveTraining, batches: list[Any], inputs: InputTimings, step_seconds: float, time_limit: float
) -> JsonDict:
    """Both ratios of a training that prepares its own batches on the CPU, where enough turns fit.

    Args:
        batches: micro-batches of one step, on the device.
        step_seconds: of one step on them, alone.
        time_limit: seconds for all of it.

    Returns:
        ``cold_ratio``: CPU seconds of a batch of the loader after a step over those of one after another batch;
        ``wakeup_ratio``: seconds of a step after a pause as long as its input over those of one after another step;
        ``pause_seconds``: that pause. Empty where it is not measured.
    """
    sample, loader = inputs.sample, inputs.loader
    if sample is None or loader is None:
        return {}
    samples = training.loader.loader.batch_size or 1
    wait = min(sample.wait_seconds or 0.0, loader.seconds / samples)
    pause = loader.seconds * training.lengths.accumulation
    found: JsonDict = {}
    if LEAST * (2 * loader.seconds + step_seconds) < time_limit:
        found |= in_child(
            lambda: {"cold_ratio": cold_batches(training, batches, time_limit / 2)}, timeout=10 * time_limit + 20.0
        )
    if LEAST * (pause + 2 * step_seconds) < time_limit:
        idle = pause_like(wait, loader.seconds / samples - wait, samples * training.lengths.accumulation)
        ratio = _ratio(lambda: training.whole_step(batches), idle, time_limit / 2, time.perf_counter)
        found |= {"wakeup_ratio": ratio, "pause_seconds": pause}
    return found


def cold_batches(training: LiveTraining, batches: list[Any], time_limit: float) -> float:
    """Meant for a forked child, which has one compute thread and a training of its own to go on with."""
    source = fresh_loader(training.loader.loader)
    stream = iter(source)

    def batch() -> None:
        nonlocal stream
        if next(stream, None) is None:  # a loader that starts again is part of every epoch
            stream = iter(source)
            next(stream, None)

    return _ratio(batch, lambda: training.whole_step(batches), time_limit, time.thread_time)


def pause_like(wait: float, work: float, samples: int) -> Callable[[], None]:
    """A pause that waits and then keeps a core at plain work, sample by sample, as preparing a batch does.

    Args:
        wait: seconds of each sample without a core.
        work: seconds of each sample on one.
        samples: how many.
    """
    waits = wait > _SHORTEST_SLEEP

    def pause() -> None:
        made: list[int] = []
        end = time.perf_counter()
        for _ in range(samples):
            if waits:
                time.sleep(wait)
                end = time.perf_counter()
            end += work
            while time.perf_counter() < end:
                made.append(len(made))

    return pause


def _ratio(
    call: Callable[[], Any],
    other: Callable[[], Any],
    time_limit: float,
    clock: Callable[[], float],
    now: Callable[[], float] = time.perf_counter,
) -> float:
    """Mean of ``call`` after ``other`` over its median after itself; 1 at least."""
    after: list[float] = []
    again: list[float] = []
    call()
    end = now() + time_limit
    while len(after) < 2 or (len(after) < MOST and now() < end):
        other()
        for seconds in (after, again):
            start = clock()
            call()
            seconds.append(clock() - start)
    usual = statistics.median(again)
    return min(_HIGHEST, max(1.0, statistics.fmean(after) / usual)) if usual > 0 else 1.0
