"""Times of steps: by the host's clock and by events, where they are steady, and what is paid once."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from autoopt.benchmark import clock as clocks
from autoopt.benchmark.clock import DeferredCost, EventClock, Lap, StageClock, clock_for, deferred_cost_for
from autoopt.benchmark.cputime import (
    CpuTimes,
    cpu_times,
    foreign_cores,
    foreign_seconds,
    stalled_seconds,
    worker_seconds,
)
from autoopt.benchmark.device import open_device
from autoopt.benchmark.steady import LONGEST, cycle_of, find_steady, period, usual_step, warmup_excess
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import least_groups, run_block
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arena import row_of
from autoopt.search.compare.comparison import SideStatistics
from autoopt.search.compare.statistics import MIN_BLOCKS, Rounds
from autoopt.testing.fakes import FakeLoader, LoaderModel
from tests.benchmark.small_training import workload


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
    clock.start()
    assert clock.stop().steps == []


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


# The steady state is found in step times: late, never, after a burst, and it costs what came before.


def series(*parts: tuple[int, float], noise: float = 0.03, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [seconds * float(np.exp(noise * rng.standard_t(3))) for count, seconds in parts for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("parts", "warm", "excess"),
    [
        (((100, 0.01),), 0, 0.0),
        (((1, 0.2), (200, 0.01)), 1, 0.19),
        (((3, 0.2), (200, 0.01)), 3, 0.57),
        (((20, 0.2), (200, 0.01)), 20, 3.8),
        (((1, 30.0), (1, 12.0), (40, 0.05)), 2, 41.9),  # it compiles
        (((50, 0.05), (50, 0.01)), 50, 2.0),
        (((60, 0.01), (15, 0.02), (60, 0.01)), 0, 0.0),  # a burst of foreign load
    ],
)
def test_what_comes_before_the_steady_state_is_warm_up(
    parts: tuple[tuple[int, float], ...], warm: int, excess: float, seed: int
) -> None:
    times = series(*parts, seed=seed)
    found = find_steady(times)
    assert found is not None
    assert warm <= found.start <= (warm + 8 if warm else 0)
    assert warmup_excess(times, found) == pytest.approx(excess, rel=0.15)


@pytest.mark.parametrize(
    "times",
    [[], [0.1] * 7, series((50, 0.05), (2, 0.01)), [0.9**step for step in range(60)]],
    ids=["none", "too few", "the level just changed", "faster for ever"],
)
def test_steps_that_are_not_steady_yet(times: list[float]) -> None:
    assert find_steady(times) is None


# How many steps must be steady before anything is measured.


@pytest.mark.parametrize(("step", "groups"), [(0.001, 4), (0.2, 4), (0.35, 3), (0.6, 2), (5.0, 2)])
def test_slow_steps_are_steady_once_they_were_for_a_second(step: float, groups: int) -> None:
    assert least_groups([9.0, *[step] * 4]) == groups
    assert least_groups([9.0, *[step] * 3, 2 * step]) == 4


@pytest.mark.parametrize(("first", "steps"), [((), 4), ((6.0,), 4), ((30.0, 2.0), 4), ((9.0, 4.0, 2.0), 5)])
def test_what_a_process_pays_first_is_left_out_of_few_slow_steps(first: tuple[float, ...], steps: int) -> None:
    times: list[float] = []
    for seconds in (*first, *[0.6] * 20):
        times.append(seconds)
        found = find_steady(times, least_groups(times))
        if found is not None:
            break
    assert len(times) == steps


# The cycle of a training: found in its step times, and in its loader's workers where training waits for them.


def bunched(workers: int, seconds: float, computing: float, jitter: float, steps: int) -> list[float]:
    rng = np.random.default_rng(workers)
    loader = FakeLoader(
        LoaderModel(workers, seconds, jitter), 0.0, lambda sd: float(np.exp(sd * rng.standard_normal()))
    )
    now, times = 0.0, []
    for _ in range(steps):
        done = loader.take(now) + computing
        times.append(done - now)
        now = done
    return times[2 * workers :]


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.05])
def test_bunches_of_an_in_order_loader_are_found_in_the_times_alone(workers: int, jitter: float) -> None:
    times = bunched(workers, 0.04 * workers, 0.01, jitter, 12 * workers)
    assert period(times) % workers == 0


@pytest.mark.parametrize("every", [2, 5, 10, 32])
def test_work_that_comes_once_in_so_many_steps_makes_a_cycle(every: int) -> None:
    rng = np.random.default_rng(every)
    times = [0.02 + 0.001 * rng.standard_normal() + (0.05 if step % every == 0 else 0.0) for step in range(5 * every)]
    assert period(times) == every


def test_noise_drift_and_bursts_make_none() -> None:
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found.append(period(list(np.exp(0.1 * rng.standard_normal(30)))))
    assert sum(one > 1 for one in found) <= 6
    assert period([0.02 + 0.001 * step for step in range(40)]) == 1
    assert period([0.02] * 20 + [0.4] + [0.02] * 20) == 1
    assert period([0.02] * 40) == period([0.02, 0.03]) == period([]) == 1


@pytest.mark.parametrize(
    ("workers", "waiting", "cycle"), [(8, 0.5, 8), (8, 0.001, 1), (0, 0.5, 1), (1, 0.5, 1), (2, 0.02, 2)]
)
def test_workers_set_the_cycle_where_training_waits_for_them(workers: int, waiting: float, cycle: int) -> None:
    assert cycle_of([0.02] * 6, workers, waiting) == cycle


def test_both_together_make_the_least_common_multiple_unless_that_is_too_long() -> None:
    times = [0.02 + (0.05 if step % 6 == 0 else 0.0) for step in range(60)]
    assert cycle_of(times, 4, 0.5) == 12
    prime = [0.02 + (0.05 if step % 79 == 0 else 0.0) for step in range(79 * 4)]
    assert cycle_of(prime, 16, 0.5) == 79 <= LONGEST


# Cores that others used, from two readings of the kernel's counters.

BEFORE = CpuTimes(own=2.0, busy=100.0)
LATER = CpuTimes(own=7.0, busy=120.0)


@pytest.mark.parametrize(
    ("before", "after", "seconds", "foreign", "cores"),
    [
        (BEFORE, LATER, 10.0, 15.0, 1.5),
        (BEFORE, CpuTimes(own=7.02, busy=105.0), 10.0, 0.0, 0.0),  # counters tick coarsely
        (BEFORE, CpuTimes(own=7.0, busy=None), 10.0, None, None),
        (CpuTimes(2.0, None), LATER, 10.0, None, None),
        (BEFORE, LATER, 0.0, 15.0, None),
    ],
)
def test_what_this_process_did_not_use_is_of_others(
    before: CpuTimes, after: CpuTimes, seconds: float, foreign: float | None, cores: float | None
) -> None:
    assert foreign_seconds(before, after) == foreign
    assert foreign_cores(before, after, seconds) == cores


# Costs paid once but late: compiling again and searches are taken out of steady steps and charged as fixed.


def lap(times: list[float]) -> Lap:
    forward = sum(times) - 0.1 * len(times)
    return Lap(sum(times), {"data": 0.1 * len(times), "forward": forward}, times)


def batch(length: int) -> list[torch.Tensor]:
    return [torch.zeros(4, length)]


@pytest.mark.parametrize(
    ("lengths", "graphs", "times", "steady"),
    [
        ((8, 8, 8, 8, 16, 16, 8), None, [3.0, 1.0, 1.1, 0.9, 5.0, 1.0, 1.0], [1.0, 1.0, 1.1, 0.9, 1.0, 1.0, 1.0]),
        # compiled in the third step, recorded in the fourth; one that is slow by itself stays
        ((8,) * 8, [1, 1, 1, 2, 2, 2, 2, 2, 2], [1.0, 1.0, 30.0, 4.0, 1.0, 1.0, 1.0, 6.0], [1.0] * 7 + [6.0]),
        ((8,) * 6, [1] * 7, [1.0, 1.0, 20.0, 1.0, 1.0, 1.0], [1.0, 1.0, 20.0, 1.0, 1.0, 1.0]),
        ((8, 16), None, [9.0, 1.0], [9.0, 1.0]),
    ],
    ids=["searched", "compiled again", "without a cause", "too short a lap to know a usual step"],
)
def test_what_a_step_pays_once_is_no_part_of_it(
    lengths: tuple[int, ...], graphs: list[int] | None, times: list[float], steady: list[float]
) -> None:
    counts = iter(graphs or [0] * 8)
    late = DeferredCost(searches=graphs is None, compiles=graphs is not None, count=lambda: next(counts))
    for length in lengths:
        late.note(batch(length))
    found, seconds = late.settled(lap(times))
    assert found.steps == steady
    assert seconds == pytest.approx(sum(times) - sum(steady))
    assert found.seconds == pytest.approx(sum(steady))
    assert found.stages["data"] == pytest.approx(0.1 * len(times))


def test_a_shape_is_searched_once() -> None:
    late = DeferredCost(searches=True, compiles=False, count=lambda: 0)
    late.note(batch(8))
    late.begin()
    for length in (8, 16, 16):
        late.note(batch(length))
    assert late.settled(lap([9.0, 1.0, 1.0]))[1] == 0.0, (
        "the first was slow for another reason, the second was not slow"
    )


def test_what_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deferred_cost_for(torch.device("cpu"), compiles=True).watching
    assert not DeferredCost(searches=False, compiles=False, count=lambda: 0).watching
    assert DeferredCost(searches=False, compiles=False, count=lambda: 1).watching, "the user's own code compiled"
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    assert deferred_cost_for(torch.device("cuda:0"), compiles=False).watching


def test_a_block_of_a_training_that_compiles_late() -> None:
    training = Training(workload(max_steps=100), device="cpu")
    graphs = [1]
    training.deferred_cost = DeferredCost(searches=False, compiles=True, count=lambda: graphs[0])
    step, spent = training.clock.step_done, []

    def slow_once() -> None:
        spent.append(1)
        if len(spent) == 12:
            graphs[0] += 1
            training.clock.step_began -= 50.0  # this step took so much longer
            training.clock.began -= 50.0
        step()

    training.clock.step_done = slow_once  # type: ignore[method-assign]
    block = run_block(training, lambda steps, _: steps >= 20)
    assert block.late_seconds == pytest.approx(50.0, abs=1.0)
    assert block.seconds < 20.0
    assert max(block.step_seconds) < 20.0
    assert len(block.step_seconds) == block.steps == 20


def block(late: float = 0.0, seconds: float = 1.0) -> Block:
    return Block(steps=4, samples=32, seconds=seconds, late_seconds=late)


def test_a_late_search_is_charged_to_its_process_as_fixed() -> None:
    tally = SideStatistics(Plan())
    start: dict[str, Any] = {"build_seconds": 1, "setup_seconds": 1, "warmup_seconds": 1, "warmup_steps": 1}
    for number in range(2):
        tally.started(Startup(**start, fixed_seconds=2.0 + number))
        tally.ran(block())
        tally.ran(block(late=5.0 * number))
    assert tally.side().fixed_seconds == (2.0, 8.0)


@pytest.mark.parametrize(
    ("times", "cycle", "seconds"),
    [
        ([2.0] * 4, 1, 2.0),
        ([2.0] * 6 + [50.0] + [2.0], 1, 2.0),  # an evaluation that falls into this block, and not into the next
        ([1.0, 3.0] * 4, 2, 2.0),
        ([1.0, 3.0, 1.0, 60.0, 1.0, 3.0, 1.0], 2, 2.0),
        ([4.0], 3, 4.0),
    ],
)
def test_the_usual_step_is_that_of_the_middle_cycle(times: list[float], cycle: int, seconds: float) -> None:
    assert usual_step(times, cycle) == pytest.approx(seconds)


def test_block_pairs_before_a_late_search_go_once_there_are_enough_after_it() -> None:
    rounds = Rounds()

    def add(candidate: Block) -> None:
        rounds.add(*(row_of(one, Plan(), "", len(rounds.paired), 0.0) for one in (block(), candidate)))

    for _ in range(5):
        add(block(seconds=1.0))
    add(block(late=3.0))
    for number in range(1, MIN_BLOCKS + 1):
        add(block(seconds=0.5))
        assert len(rounds.counted()) == (6 + number if number < MIN_BLOCKS else MIN_BLOCKS)
    level = rounds.level()
    assert level is not None
    assert level.value == pytest.approx(0.693, abs=0.01)


@pytest.mark.parametrize(
    ("before", "after", "stalled"),
    [
        ({}, {}, None),
        ({1: 0.0, 2: 1.0}, {1: 0.0, 2: 1.0}, 0.0),
        ({1: 0.0, 2: 1.0}, {1: 1.0, 2: 3.0}, 4 * (1 - 0.75 * 0.5)),
        ({1: 0.0, 2: 1.0}, {1: 1.0}, 1.0),
        ({1: 0.0}, {1: 9.0}, 4.0),
    ],
)
def test_threads_that_wait_for_a_core_stall_the_others(
    before: dict[int, float], after: dict[int, float], stalled: float | None
) -> None:
    one, other = CpuTimes(0.0, None, waited=before), CpuTimes(0.0, None, waited=after)
    assert stalled_seconds(one, other, 4.0) == stalled


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [({}, {1: 1.0}, None), ({1: 1.0}, {1: 1.5, 2: 0.25}, 0.75), ({1: 1.0, 2: 1.0}, {1: 3.0}, None)],
)
def test_workers_that_have_ended_do_not_tell_their_seconds(
    before: dict[int, float], after: dict[int, float], seconds: float | None
) -> None:
    assert worker_seconds(CpuTimes(0.0, None, workers=before), CpuTimes(0.0, None, workers=after)) == seconds


def test_the_kernel_tells_how_long_threads_wait_for_a_core() -> None:
    assert bool(cpu_times(with_children=True).waited) == os.path.exists("/proc/self/schedstat")
