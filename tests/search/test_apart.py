"""Ablation of what was kept together: parts that bring nothing are dropped."""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import pytest

from autoopt.errors import TrialFailed
from autoopt.options import Options
from autoopt.records import Change, Decided, Estimate, EstimateKind, JsonDict, Plan, Verdict
from autoopt.search.ablate import ablate, alone, unconfirmed
from autoopt.search.baseline import benchmark, described
from autoopt.search.compare.comparison import Decision
from autoopt.search.outcome import decided
from autoopt.search.state import SearchState
from autoopt.search.verify import seconds_due
from autoopt.setup import Setup
from autoopt.strategy import Applies, Risk, Strategy
from autoopt.testing.fakes import Behaviour, NoiseModel
from simulated import World, product, strategy

NOISE = NoiseModel("normal", process_sd=0.01)


def stack(world: World, parts: dict[str, tuple[float, float]]) -> SearchState:
    """The state after the parts were kept together, with the log gain that was seen of each and its standard error."""
    options = Options(budget_seconds=world.budget)
    state = described(world.context, options)
    benchmark(world.context)
    plan = Plan(changes=tuple(Change(strategy=name) for name in parts))
    state.incumbent = world.context.runner.registry.order(plan)
    state.together = {name: (name, None) for name in parts}
    for name, (gain, error) in parts.items():
        state.beliefs.saw([(name, None)], gain, error)
    return state


SURE, VAGUE = 0.05, 0.5
"""Standard errors of what was seen: a gain is told from none, and it is not."""


def world(folder: Path, speeds: dict[str, float], **options) -> World:
    return World(folder, *map(strategy, speeds), **{"speed": product(speeds), "noise": NOISE, **options})


def test_what_came_in_with_others_and_brings_nothing_is_dropped(tmp_path: Path) -> None:
    one = world(tmp_path, {"strong": 1.4, "good": 1.2, "idle": 1.0})
    # what promised most is left out last, when there is no more time: what was measured before stays a figure
    state = stack(one, {"strong": (0.34, VAGUE), "good": (0.18, VAGUE), "idle": (0.5, VAGUE)})
    rows, (told,) = ablate(one.context, one.clock() + 60.0)
    assert set(state.incumbent.names()) == {"strong", "good"}
    assert told.startswith("idle was dropped in the ablation")
    assert {c.incumbent.plan.names() for c in state.ablations} >= {("good", "idle"), ("strong", "idle")}
    assert {row.strategy: row.beside for row in rows} == {"strong": ("idle",), "good": ("idle",)}
    for row, true in zip(rows, (1.4, 1.2), strict=True):
        assert row.without.low < true < row.without.high
    found = {one.strategy: one for one in decided(state)}
    assert found["strong"].verdict is Verdict.KEPT
    assert "as idle was in it" in found["strong"].by


def test_what_another_part_cannot_stand_without_stays(tmp_path: Path) -> None:
    class Leaning(Strategy):
        name = "leaning"
        risk = Risk.EXACT

        def apply(self, setup: Setup, setting: JsonDict) -> Setup:
            if "base" not in setup.flags:
                raise ValueError("needs base")
            return setup.with_flags(leaning=True)

    speeds = {"base": 1.0, "leaning": 1.5}
    one = World(tmp_path, strategy("base"), Leaning(), speed=product(speeds), noise=NOISE)
    state = stack(one, {"base": (0.2, VAGUE), "leaning": (0.3, VAGUE)})
    ablate(one.context, one.clock() + 400.0)
    assert set(state.incumbent.names()) == {"base", "leaning"}


def test_a_setting_that_the_baseline_has_comes_back(tmp_path: Path) -> None:
    def speed(plan: Plan) -> float:
        return 1.4 if "strong" in plan.names() else 1.0

    one = World(tmp_path, strategy("strong"), strategy("workers"), speed=speed, noise=NOISE)
    state = stack(one, {"strong": (0.34, VAGUE), "workers": (0.02, VAGUE)})
    two, four = (Change(strategy="workers", setting={"number": number}) for number in (2, 4))
    state.incumbent = state.incumbent.with_change(four)
    state.baseline = Plan(changes=(two,))
    ablate(one.context, one.clock() + 900.0)
    assert state.incumbent.setting("workers") == {"number": 2}


@pytest.mark.parametrize(("seconds", "kept"), [(0.0, {"one", "other"}), (30.0, {"one"}), (180.0, {"one", "other"})])
def test_time_decides_how_many_equal_parts_can_be_told_from_none(
    tmp_path: Path, seconds: float, kept: set[str]
) -> None:
    """Without any, all were dropped, and with them the gain of a whole that was proved."""
    speeds = {"one": 1.1, "other": 1.1}
    made = world(tmp_path, speeds, noise=NoiseModel("normal", process_sd=0.03))
    state = stack(made, {"one": (0.31, VAGUE), "other": (0.3, VAGUE)})
    ablate(made.context, made.clock() + seconds)
    assert set(state.incumbent.names()) == kept


def test_without_time_the_confirmed_whole_stands_and_is_said_to(tmp_path: Path) -> None:
    one = world(tmp_path, {"strong": 1.4, "doubtful": 1.2})
    state = stack(one, {"strong": (0.34, SURE), "doubtful": (0.18, VAGUE)})
    one.clock.advance(one.context.allocation.budget - one.context.now() - 1.0)
    rows, dropped = ablate(one.context, one.clock())
    assert not dropped
    (told,) = unconfirmed(state, rows, whole=False)
    assert told.startswith("confirmed together, none of them alone: strong (about 1.39x)")
    assert "doubtful (" in told
    assert set(state.incumbent.names()) == {"strong", "doubtful"}
    assert not state.ablations


@pytest.mark.parametrize(("room", "kept"), [(0.2, {"strong", "idle"}), (1.5, {"strong"})])
def test_a_trained_plan_is_left_for_a_simpler_one_where_that_can_be_trained_as_well(
    tmp_path: Path, room: float, kept: set[str]
) -> None:
    """Live, a part that was not decided was dropped after the trainings: the rest of the plan ended unverified."""
    one = world(tmp_path, {"strong": 1.4, "idle": 1.0})
    state = stack(one, {"strong": (0.34, VAGUE), "idle": (0.15, SURE)})
    one.context.gate.trainings.interleaved(state.baseline, state.incumbent, 1000, purpose="trained")
    assert one.context.gate.trained_pairs(state.incumbent)
    left = one.context.allocation.budget - one.context.now()
    ablating = 8 * one.context.allocation.pair
    due = seconds_due(one.context, state.without("idle"))
    one.clock.advance(left - ablating - room * due)
    ablate(one.context, one.clock() + ablating)
    assert set(state.incumbent.names()) == kept
    assert {seen.decision for seen in state.ablations if "idle" not in seen.incumbent.plan.names()} == {
        Decision.INCONCLUSIVE
    }


# Parts of a plan that a running process can put on and off, left out and tried alone in such, in simulated time.

SPEEDS = {"loader": 1.4, "amp": 1.2, "layout": 1.1}
NOISE_SWITCHED_APART = NoiseModel("normal", block_sd=0.03, process_sd=0.05)


def switched_apart(folder: Path, **options) -> tuple[World, SearchState, int]:
    """All of them kept together and then ablated, the state after it, and the processes started before it."""
    strategies = [strategy(name, switchable=name != "loader") for name in SPEEDS]
    made = World(folder, *strategies, speed=product(SPEEDS), noise=NOISE_SWITCHED_APART, **options)
    state = stack(made, {name: (max(log(speed), 0.15), VAGUE) for name, speed in SPEEDS.items()})
    before = len(made.runner.machine.started)
    ablate(made.context, made.clock() + 400.0)
    return made, state, before


def test_what_a_process_can_put_on_and_off_is_left_out_in_it(tmp_path: Path) -> None:
    made, state, before = switched_apart(tmp_path)
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
    found = {one.strategy: one for one in decided(state)}
    assert "processes that were switched" in found["amp"].by
    for seen in state.ablations:
        (name,) = set(SPEEDS) - set(seen.incumbent.plan.names())
        assert seen.decision is Decision.ACCEPT
        assert seen.estimate.low < SPEEDS[name] < seen.estimate.high


def test_one_that_fails_in_the_process_is_compared_by_processes_of_its_own(tmp_path: Path) -> None:
    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        lost = plan.names() == ("loader", "amp")
        return replace(behaviour, fails=TrialFailed("error", "no") if lost else None)

    _, state, _ = switched_apart(tmp_path, behave=behave)
    modes = {seen.incumbent.plan.names(): (seen.mode, seen.decision) for seen in state.ablations}
    assert modes[("loader", "layout")] == ("switched", Decision.ACCEPT)
    assert modes[("loader", "amp")] == ("interleaved", Decision.FAILED)
    assert set(state.incumbent.names()) == set(SPEEDS), "what is left cannot run without it"


def test_each_alone_is_put_on_a_process_of_the_baseline(tmp_path: Path) -> None:
    made, state, _ = switched_apart(tmp_path)
    rows, _ = ablate(made.context, made.clock() + 400.0)
    measured = len(state.ablations)
    rows = alone(made.context, rows, made.clock() + 400.0)
    modes = {seen.candidate.plan.names(): seen.mode for seen in state.ablations[measured:]}
    assert modes == {("amp",): "switched", ("layout",): "switched", ("loader",): "interleaved"}
    for row in rows:
        assert row.alone.low < SPEEDS[row.strategy] < row.alone.high


@pytest.mark.parametrize(("gain", "kept"), [(0.95, {"a"}), (1.2, {"a", "b"})])
def test_a_companion_is_put_off_where_the_pair_is_as_fast_without_it(
    tmp_path: Path, gain: float, kept: set[str]
) -> None:
    """Each half of a pair took half a minute in processes of its own."""
    first = strategy("a", switchable=True, companions=lambda self, case, setting: [Change(strategy="b")])
    second = strategy("b", switchable=True, applies=lambda self, case: Applies.no("only beside a"))
    made = World(
        tmp_path, first, second, speed=product({"a": 1.4, "b": gain}), noise=NOISE_SWITCHED_APART, budget=600.0
    )
    outcome = made.go()
    assert set(outcome.best.plan.names()) == kept
    halves = [seen for seen in outcome.state.ablations if len(seen.candidate.plan.changes) == 2]
    assert {seen.mode for seen in halves} == {"switched"}


# What became of each candidate, over its trials and the ablation.


def told(world: World) -> dict[str, Decided]:
    return {row.strategy: row for row in decided(world.go().state)}


def test_a_part_of_a_stack_is_decided_by_leaving_it_out_from_what_it_was_then(tmp_path: Path) -> None:
    names = ("one", "other")
    promise = Estimate(value=1.4, low=1.3, high=1.5, n=1, kind=EstimateKind.TRIED)
    made = (strategy(name, predict=lambda self, case, setting: promise) for name in names)
    world = World(tmp_path, *made, speed=product(dict.fromkeys(names, 1.4)), budget=600.0)
    state = world.go().state
    assert {trial.strategy for trial in state.trials if trial.verdict is Verdict.KEPT} != set(names)
    assert all("with and without it" in row.by for row in decided(state) if row.strategy in names)
    state.incumbent = Plan(changes=(*state.incumbent.changes, Change(strategy="later")))
    rows = {row.strategy: row for row in decided(state)}
    assert rows["later"].verdict is None
    for name in names:
        assert rows[name].verdict is Verdict.KEPT
        assert "later came into it" in rows[name].by


def test_what_is_slower_or_fails_is_decided_and_what_is_equal_is_not(tmp_path: Path) -> None:
    speeds = {"slow": 0.5, "equal": 1.0}
    world = World(tmp_path, *map(strategy, speeds), speed=product(speeds), budget=240.0)
    rows = told(world)
    assert rows["slow"].verdict in (Verdict.NO_GAIN, Verdict.HARMFUL)
    assert rows["equal"].verdict is None
    assert rows["equal"].by


def test_a_companion_that_is_no_part_of_the_plan_is_decided_by_leaving_it_out(tmp_path: Path) -> None:
    first = strategy("first", companions=lambda self, case, setting: [Change(strategy="passenger")])
    speeds = {"first": 1.5, "passenger": 0.8}
    world = World(tmp_path, first, strategy("passenger"), speed=product(speeds), budget=900.0)
    outcome = world.go()
    assert outcome.best.plan == Plan(changes=(Change(strategy="first"),))
    rows = {row.strategy: row for row in decided(outcome.state)}
    assert rows["passenger"].verdict in (Verdict.NO_GAIN, Verdict.HARMFUL)
