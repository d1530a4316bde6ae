"""Parts of a plan that a running process can put on and off, left out and tried alone in such, in simulated time."""

from __future__ import annotations

from math import log
from pathlib import Path

import numpy as np
import pytest

from autoopt.errors import TrialFailed
from autoopt.options import Options
from autoopt.records import Change, Plan
from autoopt.search.ablate import ablate, alone, take_apart
from autoopt.search.at_once import compare_switched, switchable_from
from autoopt.search.baseline import benchmark, described
from autoopt.search.compare.comparison import Decision
from autoopt.search.decided import decided
from autoopt.search.state import Part, SearchState
from autoopt.strategy import Applies
from autoopt.testing.fakes import Behaviour, NoiseModel
from simulated import World, product, strategy

SPEEDS = {"loader": 1.4, "amp": 1.2, "layout": 1.1}
NOISE = NoiseModel("normal", block_sd=0.03, process_sd=0.05)


def world(folder: Path, speeds: dict[str, float] = SPEEDS, **options) -> World:
    made = [strategy(name, switchable=name != "loader") for name in speeds]
    return World(folder, *made, **{"speed": product(speeds), "noise": NOISE, **options})


def stack(made: World, speeds: dict[str, float] = SPEEDS) -> SearchState:
    """The state after all of them were kept together, with what looks showed of each."""
    options = Options(budget_seconds=made.budget)
    state = described(made.context, options)
    benchmark(made.context, state, options)
    plan = Plan(changes=tuple(Change(strategy=name) for name in speeds))
    state.incumbent = made.context.runner.registry.order(plan)
    state.together = {name: Part(max(log(speed), 0.15)) for name, speed in speeds.items()}
    return state


def test_what_a_process_can_put_on_and_off_is_left_out_in_it(tmp_path: Path) -> None:
    made = world(tmp_path)
    state = stack(made)
    before = len(made.runner.machine.started)
    take_apart(made.context, state, made.clock() + 400.0)
    modes = {seen.incumbent.plan.names(): seen.mode for seen in state.ablations}
    assert modes == {
        ("loader", "layout"): "switched",
        ("loader", "amp"): "switched",
        ("amp", "layout"): "interleaved",
    }
    began = [plan.names() for plan, _ in made.runner.machine.started[before:]]
    switched = max(len(seen.pairs) for seen in state.ablations if seen.mode == "switched")
    assert began[:switched] == [("loader",)] * switched, "what all of them have in common takes the rest on"
    assert switched >= 2, "processes are replicated"
    assert not state.together, "each is decided"
    found = {one.strategy: one for one in decided(state)}
    assert "processes that were switched" in found["amp"].by
    for seen in state.ablations:
        (name,) = set(SPEEDS) - set(seen.incumbent.plan.names())
        assert seen.decision is Decision.ACCEPT
        assert seen.estimate is not None
        assert seen.estimate.low < SPEEDS[name] < seen.estimate.high


def test_it_decides_in_fewer_seconds_than_processes_of_each(tmp_path: Path) -> None:
    """What a machine's processes differ by is not in the way."""
    widths, seconds = {}, {}
    for switchable in (True, False):
        speeds = {"amp": 1.2, "layout": 1.1}
        made = World(
            tmp_path / str(switchable),
            *(strategy(name, switchable=switchable) for name in speeds),
            speed=product(speeds),
            noise=NOISE,
        )
        state = stack(made, speeds)
        since = made.clock()
        take_apart(made.context, state, made.clock() + 60.0)
        seconds[switchable] = made.clock() - since
        widths[switchable] = [log(seen.estimate.high / seen.estimate.low) for seen in state.ablations if seen.estimate]
    assert max(widths[True]) < min(widths[False])
    assert seconds[True] < seconds[False]


def test_an_idle_part_is_dropped_and_the_rest_is_measured_without_it(tmp_path: Path) -> None:
    speeds = {"loader": 1.4, "amp": 1.2, "layout": 0.97}
    made = world(tmp_path, speeds)
    state = stack(made, speeds)
    take_apart(made.context, state, made.clock() + 400.0)
    assert set(state.incumbent.names()) == {"loader", "amp"}


def test_one_that_fails_in_the_process_is_compared_by_processes_of_its_own(tmp_path: Path) -> None:
    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        lost = plan.names() == ("loader", "amp")
        return behaviour.__class__(**{**vars(behaviour), "fails": TrialFailed("error", "no") if lost else None})

    made = world(tmp_path, behave=behave)
    state = stack(made)
    take_apart(made.context, state, made.clock() + 400.0)
    modes = {seen.incumbent.plan.names(): (seen.mode, seen.decision) for seen in state.ablations}
    assert modes[("loader", "layout")] == ("switched", Decision.ACCEPT)
    assert modes[("loader", "amp")] == ("interleaved", Decision.FAILED)
    assert set(state.incumbent.names()) == set(SPEEDS), "what is left cannot run without it"


def test_each_alone_is_put_on_a_process_of_the_baseline(tmp_path: Path) -> None:
    made = world(tmp_path)
    state = stack(made)
    take_apart(made.context, state, made.clock() + 400.0)
    rows, _ = ablate(made.context, state, made.clock() + 400.0)
    measured = len(state.ablations)
    rows = alone(made.context, state, rows, made.clock() + 400.0)
    modes = {seen.candidate.plan.names(): seen.mode for seen in state.ablations[measured:]}
    assert modes == {("amp",): "switched", ("layout",): "switched", ("loader",): "interleaved"}
    for row in rows:
        assert row.alone is not None
        assert row.alone.low < SPEEDS[row.strategy] < row.alone.high


def test_as_many_are_left_out_as_there_is_time_for(tmp_path: Path) -> None:
    speeds = {"amp": 1.3, "layout": 1.2, "copies": 1.1}
    made = World(tmp_path, *(strategy(name, switchable=True) for name in speeds), speed=product(speeds), noise=NOISE)
    state = stack(made, speeds)
    less = [state.incumbent.without(name) for name in speeds]
    compare_switched(made.context, state, state.incumbent, less, "candidate", made.clock() + 25.0, "ablation")
    assert [seen.incumbent.plan for seen in state.ablations] == less[:2]
    assert not compare_switched(made.context, state, state.incumbent, less, "candidate", made.clock() + 5.0, "ablation")
    assert len(state.ablations) == 2


def test_a_resumed_run_reads_them_back(tmp_path: Path) -> None:
    first = world(tmp_path)
    state = stack(first)
    take_apart(first.context, state, first.clock() + 400.0)
    first.run.close()
    again = world(tmp_path, resume=True)
    resumed = stack(again)
    take_apart(again.context, resumed, again.clock() + 400.0)
    assert resumed.ablations == state.ablations
    assert not again.runner.machine.started


@pytest.mark.parametrize(("gain", "kept"), [(0.95, {"a"}), (1.2, {"a", "b"})])
def test_a_companion_is_put_off_where_the_pair_is_as_fast_without_it(
    tmp_path: Path, gain: float, kept: set[str]
) -> None:
    """Each half of a pair took half a minute in processes of its own."""
    first = strategy("a", switchable=True, companions=lambda self, case, setting: [Change(strategy="b")])
    second = strategy("b", switchable=True, applies=lambda self, case: Applies.no("only beside a"))
    made = World(tmp_path, first, second, speed=product({"a": 1.4, "b": gain}), noise=NOISE, budget=600.0)
    outcome = made.go()
    assert set(outcome.best.plan.names()) == kept
    halves = [seen for seen in outcome.state.ablations if len(seen.candidate.plan.changes) == 2]
    assert {seen.mode for seen in halves} == {"switched"}


def test_a_process_has_what_its_plans_have_in_common(tmp_path: Path) -> None:
    made = world(tmp_path)

    def plan(*names: str) -> Plan:
        return Plan(changes=tuple(Change(strategy=name) for name in names))

    whole = plan("loader", "amp", "layout")
    less = [plan("loader", "amp"), plan("amp", "layout"), plan("loader", "layout")]
    base, chosen = switchable_from(made.context, whole, less)
    assert base == plan("loader")
    assert chosen == [less[0], less[2]], "a loader's workers are not switched"
    base, chosen = switchable_from(made.context, whole, [less[1]])
    assert not chosen
    made.runner.parallel = 2
    assert not switchable_from(made.context, whole, less)[1], "several processes at once are not switched"


@pytest.mark.slow
def test_a_part_that_brings_nothing_is_seldom_called_needed(tmp_path: Path) -> None:
    """Of what a process shows of it by chance, and of what a process of its own would, a twentieth at most is kept."""
    needed = 0
    for seed in range(100):
        speeds = {"loader": 1.4, "idle": 1.0}
        made = world(tmp_path / str(seed), speeds)
        made.runner.machine.rng = np.random.default_rng(seed)
        state = stack(made, speeds)
        take_apart(made.context, state, made.clock() + 100.0)
        needed += any(
            seen.decision is Decision.ACCEPT for seen in state.ablations if "idle" not in seen.incumbent.plan.names()
        )
    assert needed <= 10
