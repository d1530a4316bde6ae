"""Stage times by the host's clock and by stream events: exposed seconds, all of them, short steps sampled."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.benchmark import clock as clocks
from autoopt.benchmark.clock import EventClock, StageClock, clock_for
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


class Host:
    """The host's time, set by the test; counts how often it is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.reads = 0.0, 0
        monkeypatch.setattr(clocks, "perf_counter", self.read)

    def read(self) -> float:
        self.reads += 1
        return self.now


STEP = {"forward": 0.0003, "backward": 0.0004, "optimizer": 0.0001, "other": 0.0001}


def host_steps(clock: StageClock, host: Host, waits: list[float], slow: float = 1.0) -> None:
    for wait in waits:
        host.now += wait
        clock.mark("data")
        for stage, seconds in STEP.items():
            host.now += seconds * (slow if stage == "backward" else 1.0)
            if clock.fine and stage != "other":
                clock.mark(stage)
        clock.step_done()


def test_every_wait_for_data_is_seen_where_steps_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    clock = StageClock()
    host_steps(clock, host, [0.0] * 50)
    clock.stop()
    assert clock.every == 22, "0.9 ms steps: 20 ms over that"
    clock.start()
    host.reads = 0
    waits = [0.05 if number % 9 == 4 else 0.0001 for number in range(900)]
    host_steps(clock, host, waits)
    lap = clock.stop()
    assert host.reads < 900 * 2.6, "two readings a step, and three more in one of 22"
    assert lap.stages["data"] == pytest.approx(sum(waits))
    for stage, seconds in STEP.items():
        assert lap.stages[stage] == pytest.approx(900 * seconds, rel=1e-6)
    assert sum(lap.stages.values()) == pytest.approx(lap.seconds)
    assert sum(lap.steps) == pytest.approx(lap.seconds)


@pytest.mark.parametrize("period", [2, 3, 4, 9, 18])
def test_what_repeats_every_so_many_steps_is_met_as_often_as_it_comes(
    period: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(monkeypatch)
    clock = StageClock()
    host_steps(clock, host, [0.0] * 50)
    clock.stop()
    clock.start()
    for _ in range(9000 // period):
        host_steps(clock, host, [0.0] * (period - 1))
        host_steps(clock, host, [0.0], slow=3.0)
    lap = clock.stop()
    true = len(lap.steps) * STEP["backward"] + len(lap.steps) // period * 2 * STEP["backward"]
    assert lap.stages["backward"] == pytest.approx(true, rel=0.05)


def test_long_steps_are_all_split(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(monkeypatch)
    clock = StageClock()
    for _ in range(3):
        host_steps(clock, host, [0.03] * 20)
        clock.stop()
        assert clock.every == 1
        clock.start()
        assert clock.fine
