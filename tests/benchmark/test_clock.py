"""Stage times from stream events: exposed seconds, one synchronization per block, short steps sampled."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.benchmark.clock import EventClock, clock_for
from autoopt.benchmark.device import open_device


class Event:
    def __init__(self, at: float) -> None:
        self.at = at

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1e3

    def synchronize(self) -> None:
        pass


class Stream:
    """A device whose stream is at a time that the test sets."""

    timed_by_events = True

    def __init__(self) -> None:
        self.now = 0.0
        self.synchronizations = 0
        self.events = 0

    def synchronize(self) -> None:
        self.synchronizations += 1

    def event(self) -> Event:
        self.events += 1
        return Event(self.now)


def steps(clock: Any, stream: Stream, count: int) -> None:
    for _ in range(count):
        for stage, seconds in (("data", 0.001), ("copy", 0.001), ("forward", 0.003), ("backward", 0.005)):
            stream.now += seconds
            clock.mark(stage)
        stream.now += 0.002
        clock.step_done()


def test_shares_are_those_of_the_stream() -> None:
    stream = Stream()
    clock = EventClock(stream)  # type: ignore[arg-type]
    clock.start()
    before = stream.synchronizations
    steps(clock, stream, 10)
    lap = clock.stop()
    assert stream.synchronizations == before + 1
    assert lap.steps == pytest.approx([0.012] * 10)
    assert lap.stages["forward"] / lap.stages["data"] == pytest.approx(3)
    assert lap.stages["other"] / lap.stages["data"] == pytest.approx(2)
    assert sum(lap.stages.values()) == pytest.approx(lap.seconds)


def test_short_steps_are_sampled_and_the_shares_stay() -> None:
    stream = Stream()
    clock = EventClock(stream)  # type: ignore[arg-type]
    clock.start()
    steps(clock, stream, 100)  # by the host's clock they take microseconds
    clock.stop()
    clock.start()
    before = stream.events
    steps(clock, stream, 100)
    assert stream.events - before < 2 * 100
    lap = clock.stop()
    assert len(lap.steps) == 100
    assert lap.stages["backward"] / lap.stages["data"] == pytest.approx(5)


def test_a_long_run_keeps_few_events_and_all_steps() -> None:
    stream = Stream()
    clock = EventClock(stream)  # type: ignore[arg-type]
    clock.start()
    for number in range(3000):
        stream.now += 0.5 * (number == 2000)
        steps(clock, stream, 1)
    assert len(clock._events) < 3000
    lap = clock.stop()
    assert len(lap.steps) == 3000
    assert sum(lap.steps) == pytest.approx(3000 * 0.012 + 0.5)
    assert lap.stages["forward"] / lap.stages["copy"] == pytest.approx(3)


def test_an_empty_block() -> None:
    stream = Stream()
    lap = EventClock(stream).stop()  # type: ignore[arg-type]
    assert lap.steps == []


def test_the_cpu_is_timed_by_the_host() -> None:
    clock = clock_for(open_device("cpu"))
    assert not isinstance(clock, EventClock)
    clock.mark("data")
    clock.step_done()
    lap = clock.stop()
    assert len(lap.steps) == 1
    assert sum(lap.stages.values()) == pytest.approx(lap.seconds, abs=1e-9)
