"""Costs paid once but late: compiling again and searches are taken out of steady steps and charged as fixed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from autoopt.benchmark.clock import DeferredCost, Lap, deferred_cost_for, settled
from autoopt.benchmark.target import parts
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.records import Curve, Plan
from autoopt.records.messages import Block, Startup, TrainingRun
from autoopt.search.compare.arena import row_of
from autoopt.search.compare.rounds import Rounds
from autoopt.search.compare.side_statistics import SideStatistics
from autoopt.search.compare.statistics import MIN_BLOCKS

sys.path.insert(0, str(Path(__file__).parent))

from small_training import workload


def lap(times: list[float]) -> Lap:
    forward = sum(times) - 0.1 * len(times)
    return Lap(sum(times), {"data": 0.1 * len(times), "forward": forward}, times)


def batch(length: int) -> list[torch.Tensor]:
    return [torch.zeros(4, length)]


def test_a_search_for_a_new_shape_is_no_part_of_the_steady_step() -> None:
    late = DeferredCost(searches=True, compiles=False, count=lambda: 0)
    times = [3.0, 1.0, 1.1, 0.9, 5.0, 1.0, 1.0]
    for length in (8, 8, 8, 8, 16, 16, 8):
        late.note(batch(length))
    found, seconds = late.settled(lap(times))
    assert found.steps == [1.0, 1.0, 1.1, 0.9, 1.0, 1.0, 1.0]
    assert seconds == pytest.approx(2.0 + 4.0)
    assert found.seconds == pytest.approx(7.0)
    assert found.stages == pytest.approx({"data": 0.7, "forward": 6.3})


def test_a_shape_is_searched_once() -> None:
    late = DeferredCost(searches=True, compiles=False, count=lambda: 0)
    late.note(batch(8))
    late.begin()
    for length in (8, 16, 16):
        late.note(batch(length))
    assert late.settled(lap([9.0, 1.0, 1.0]))[1] == 0.0, (
        "the first was slow for another reason, the second was not slow"
    )


def test_compiling_again_with_the_graphs_that_are_recorded_after_it() -> None:
    graphs = iter([1, 1, 1, 2, 2, 2, 2, 2, 2])
    late = DeferredCost(searches=False, compiles=True, count=lambda: next(graphs))
    for _ in range(8):
        late.note(batch(8))
    found, seconds = late.settled(lap([1.0, 1.0, 30.0, 4.0, 1.0, 1.0, 1.0, 6.0]))
    assert found.steps == [1.0] * 7 + [6.0], "a step that is slow by itself stays"
    assert seconds == pytest.approx(32.0)


def test_a_slow_step_without_a_cause_stays() -> None:
    late = DeferredCost(searches=False, compiles=True, count=lambda: 1)
    for _ in range(6):
        late.note(batch(8))
    times = [1.0, 1.0, 20.0, 1.0, 1.0, 1.0]
    assert late.settled(lap(times)) == (lap(times), 0.0)


def test_a_lap_too_short_to_know_a_usual_step_stays() -> None:
    assert settled([9.0, 1.0], [0, 1]) == [9.0, 1.0]
    assert settled([], []) == []


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

    training.step_by_stages()
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
    for number in range(2):
        tally.started(
            Startup(
                build_seconds=1,
                setup_seconds=1,
                warmup_seconds=1,
                warmup_steps=1,
                steady=True,
                fixed_seconds=2.0 + number,
            )
        )
        tally.ran(block())
        tally.ran(block(late=5.0 * number))
    assert tally.side().fixed_seconds == (2.0, 8.0)


def test_block_pairs_before_a_late_search_go_once_there_are_enough_after_it() -> None:
    rounds = Rounds(0.15)

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


def test_what_is_paid_once_counts_once_in_the_time_to_target() -> None:
    run = TrainingRun(
        seed=0,
        curve=Curve(seed=0),
        seconds=40.0,
        training_seconds=40.0,
        evaluation_seconds=0.0,
        evaluations=0,
        steps=10,
        samples=80,
        fixed_seconds=32.0,
        once_seconds=30.0,
        reached=None,
    )
    found = parts(run, None, "max")
    assert found is not None
    assert found.step_seconds == pytest.approx(1.0)
    assert found.seconds == pytest.approx(42.0)
