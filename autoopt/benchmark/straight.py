"""Steps in one frame, where a step is one batch that needs no moving: what every loop does, and what a clock must.

A step of a millisecond sweeps the processor's caches, so that whatever is called beside it costs microseconds: some
in every step, some twenty for what comes once in fifteen. So each step is two readings of the time and its loss, and
what can be summed up afterwards is summed up at the epoch's end: times, samples, the place in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from autoopt.benchmark.loss_recorder import LossRecorder
from autoopt.benchmark.training import Training

Enough = Callable[[int, float], bool]
"""``enough(steps, seconds)``: whether a block may end."""


def train_straight(training: Training, enough: Enough, done: int, captured: LossRecorder) -> tuple[int, bool]:
    """Trains to the end of the epoch, or until it is enough.

    Args:
        training: one whose ``straight()`` was just asked, and is true.
        enough: asked after each step.
        done: steps of the lap so far.
        captured: gets the losses.

    Returns:
        The steps of the lap after it, and whether it is enough.
    """
    step, schedule, clock, late = training.one_step, training.schedule, training.clock, training.late
    scheduled, watching, began = not schedule.idle, late.watching, clock.began
    arrivals: list[float] = []
    ends: list[float] = []
    losses: list[Any] = []
    split, over, surprised = done + clock.coarse, False, False
    try:
        for batch in training.feed.straight():
            arrived = perf_counter()
            arrivals.append(arrived)
            if done == split:
                clock.split(arrived)
                loss = training.compute([batch])
                end = perf_counter()
                split += clock.split_done(end)
                surprised = training.feed.surprised(batch, len(ends))
            else:
                loss = step([batch])
                if scheduled:
                    schedule.step()
                end = perf_counter()
            ends.append(end)
            losses.append(loss.tolist())
            if watching:
                late.look([batch])
            done += 1
            over = enough(done, end - began)
            if over or surprised:
                break
        else:
            training.feed.ended(len(arrivals))
    finally:
        training.passed(arrivals, ends, split - done)
        captured.extend(losses)
    return done, over
