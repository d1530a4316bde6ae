"""What is tried, for how long, and what is left out with its reason."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records import Change, Estimate, EstimateKind, JsonDict, Plan, Sites, Trial, Verdict
from autoopt.registry import Registry, Source, load_strategies
from autoopt.search.accept.gathering import Gate
from autoopt.search.baseline import opportunities
from autoopt.search.budget_allocation import KEPT_BACK_AT_MOST, BudgetAllocation
from autoopt.search.planner import Choice, build_queue, by_promise
from autoopt.search.screening import Screened
from autoopt.setup import Setup
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Applies, Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour, NoiseModel
from autoopt.testing.strategies import sample_case
from benchmarks.truth.loaders import Case as LoaderCase
from benchmarks.truth.loaders import run
from simulated import World, product, strategy, verdicts


@pytest.mark.parametrize("changes", [0, 1, 3])
def test_a_long_run_keeps_back_no_more_than_the_end_takes(changes: int) -> None:
    """Two trainings of each, each change left out once, and the final comparison: minutes of two hours."""
    long = BudgetAllocation(budget=7200.0, start_seconds=2.0, baseline_seconds=60.0, pair_seconds=9.0)
    assert long.kept_back(changes) <= 4 * 62.0 + (changes + 1) * long.comparison


@given(
    budget=st.floats(20.0, 1e5),
    start=st.floats(0.5, 60.0),
    training=st.floats(0.0, 1e4),
    changes=st.integers(0, 9),
    speedup=st.floats(1.0, 50.0),
)
def test_a_faster_plan_needs_less_time_at_the_end_and_never_half_the_budget(
    budget: float, start: float, training: float, changes: int, speedup: float
) -> None:
    allocation = BudgetAllocation(budget=budget, start_seconds=start, baseline_seconds=training)
    kept = allocation.kept_back(changes, speedup)
    assert (kept > 0.0) == (changes > 0)
    assert kept <= allocation.kept_back(changes) <= KEPT_BACK_AT_MOST * budget


# A gain that is larger than all that the rest promise is proved before anything else is looked at.


def seen(name: str, gain: float, error: float = 0.05, stage: str = "forward") -> Screened:
    candidate: Any = SimpleNamespace(strategy=SimpleNamespace(name=name, stages=(stage,)), combined=False)
    trial: Any = SimpleNamespace(id=1)
    return Screened(candidate, trial, log(gain), error)


def predicted(value: float, kind: EstimateKind = EstimateKind.SIMULATED, low: float | None = None) -> Estimate:
    return Estimate(value=value, low=low or 0.9 * value, high=1.1 * value, n=1, kind=kind)


def test_a_gain_is_confirmed_before_its_rivals_are_screened(tmp_path: Path) -> None:
    """Five screenings of ways to do the same took the time in which the plan was to be verified."""
    promised = {"workers": 1.6, "cache": 1.4, "decoding": 1.3, "vague": 1.02}

    def made(name: str) -> Strategy:
        def applies(self: Strategy, case: Case) -> Applies:
            taken = set(case.plan.names()) - {"vague"}
            return Applies.no(f"{taken} does it") if taken and name != "vague" else Applies.yes()

        stages = frozenset({"forward" if name == "vague" else "preparation"})
        predict = lambda self, case, setting: predicted(promised[name])  # noqa: E731
        return strategy(name, stages=stages, predict=predict, applies=applies)

    def speed(plan: Plan) -> float:
        return max((promised[name] for name in plan.names()), default=1.0)

    noise = NoiseModel("normal", process_sd=0.01)
    outcome = World(tmp_path, *map(made, promised), speed=speed, noise=noise, budget=300.0).go()
    before = [one.candidate.plan.names() for one in outcome.state.screenings if not one.incumbent.plan.changes]
    assert before == [("workers",)]
    assert outcome.best.plan.names() == ("workers",)


def test_it_is_kept_before_the_rest_has_a_look_and_the_rest_is_found_on_it(tmp_path: Path) -> None:
    speeds = {"idle": 1.0, "huge": 3.0, "small": 1.15, "late": 1.2}

    def told(name: str) -> Strategy:
        return strategy(name, predict=lambda self, case, setting: predicted(speeds[name] * 1.02, EstimateKind.BOUND))

    made = World(
        tmp_path,
        *map(told, speeds),
        speed=product(speeds),
        noise=NoiseModel("normal", process_sd=0.01),
        budget=900.0,
    )
    outcome = made.go()
    assert set(outcome.best.plan.names()) == {"huge", "small", "late"}
    screenings = [
        (screening.incumbent.plan.names(), screening.candidate.plan.names()) for screening in outcome.state.screenings
    ]
    assert screenings.index(((), ("huge",))) == len([one for one in screenings if one[0] == ()]) - 1
    assert (("huge",), ("huge", "late")) in screenings
    kept = [trial.strategy for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert kept[0] == "huge"


def test_all_that_predictions_promise_has_the_first_look(tmp_path: Path) -> None:
    """Three changes whose predictions hold: one look and one proof in place of three of each."""
    speeds = {"idle": 1.0, "one": 1.3, "two": 1.25, "three": 1.2, "slow": 0.8}

    def told(name: str) -> Strategy:
        return strategy(name, predict=lambda self, case, setting: predicted(speeds[name]))

    noise = NoiseModel("normal", process_sd=0.01)
    made = World(tmp_path, *map(told, speeds), speed=product(speeds), noise=noise, budget=300.0)
    outcome = made.go()
    assert outcome.state.screenings[0].candidate.plan.names() == ("one", "two", "three")
    assert outcome.best.plan.names() == ("one", "two", "three")
    kept = [trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert len(kept) == 1
    assert kept[0].predicted is not None
    assert kept[0].predicted.value == pytest.approx(1.3 * 1.25 * 1.2)
    # nothing was selected by that pair of processes: the confirmation goes on from it, and one more is enough
    confirmed = outcome.state.comparisons[kept[0].id]
    assert confirmed.pairs[0] == outcome.state.screenings[0].pairs[0]
    assert len(confirmed.pairs) == 2


def test_what_hardly_promises_anything_does_not_take_the_time_of_a_confirmation(tmp_path: Path) -> None:
    """44 of 240 s went to a compilation that was predicted to be slower, next to two gains that were not plain yet."""
    speeds = {"small": 1.15, "dear": 0.8}
    doubtful = Estimate(value=0.8, low=0.65, high=1.48, n=1, kind=EstimateKind.DECLARED)
    told = {"small": predicted(1.1), "dear": doubtful}

    def behave(plan: Plan, known: Behaviour) -> Behaviour:
        return replace(known, startup_seconds=40.0) if "dear" in plan.names() else known

    made = (strategy(name, predict=lambda self, case, setting, name=name: told[name]) for name in speeds)
    noise = NoiseModel("normal", process_sd=0.06)
    outcome = World(tmp_path, *made, speed=product(speeds), behave=behave, noise=noise, budget=240.0).go()
    assert outcome.best.plan.names() == ("small",)
    tried = [trial.strategy for trial in outcome.state.trials if trial.throughput is not None]
    assert tried[0] == "small", "its confirmation came before the other's screening"


def test_what_is_screened_before_all_else_is_confirmed_from_its_screening_on(tmp_path: Path) -> None:
    """No figure selected it: a large gain is confirmed before anything is screened next to it."""
    speeds = {"one": 2.0, "none": 1.0}
    noise = NoiseModel("normal", process_sd=0.01)
    outcome = World(tmp_path, *map(strategy, speeds), speed=product(speeds), noise=noise, budget=100.0).go()
    (kept,) = (trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT)
    assert kept.strategy == "one"
    assert outcome.state.comparisons[kept.id].pairs[0] == outcome.state.screenings[0].pairs[0]


def test_a_confirmation_goes_on_until_the_speed_outweighs_the_steps_that_rounding_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended after two pairs at 1.53x [1.02, 2.36], of which 5.7 % more steps left 1.45x [0.96, 2.36]: undecided."""
    price = 1.15
    monkeypatch.setattr(Gate, "price", lambda self, plan, incumbent: price if plan != incumbent else 1.0)
    noise = NoiseModel("normal", process_sd=0.03)
    world = World(tmp_path, strategy("rounds"), speed=product({"rounds": 1.35}), noise=noise, budget=400.0)
    outcome = world.go()
    (kept,) = (trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT)
    assert kept.throughput is not None
    assert kept.throughput.low > price


def test_what_figures_select_is_confirmed_by_pairs_of_processes_that_did_not(tmp_path: Path) -> None:
    speeds = {"one": 1.3, "none": 1.0, "slow": 0.8}
    noise = NoiseModel("normal", process_sd=0.01)
    outcome = World(tmp_path, *map(strategy, speeds), speed=product(speeds), noise=noise, budget=300.0).go()
    (kept,) = (trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT)
    looked = {pair for screening in outcome.state.screenings for pair in screening.pairs}
    assert kept.strategy == "one"
    assert not looked & set(outcome.state.comparisons[kept.id].pairs)


# Looks that are not taken: what no setting can mend, and what cannot pay whatever the graph leaves out.

SETTINGS: tuple[JsonDict, ...] = ({"threads": 2}, {"threads": 4}, {"threads": 8})


@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.NUMERIC])
def test_no_further_setting_of_an_exact_change_that_changed_the_losses(tmp_path: Path, risk: Risk) -> None:
    """It says that no setting changes what is learnt; another precision may well round less."""

    def others(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, loss=lambda step: 9.0 - 0.01 * step) if plan.changes else behaviour

    world = World(
        tmp_path,
        strategy("threaded", risk=risk, settings=SETTINGS),
        speed=lambda plan: 1.2 if plan.changes else 1.0,
        behave=others,
    )
    outcome = world.go()
    found = verdicts(outcome)["threaded"]
    assert set(found) == {Verdict.QUALITY_LOST}
    assert len(found) == (1 if risk is Risk.EXACT else 3)
    assert outcome.best.plan == Plan()


class Input(Strategy):
    name, risk, stages = "input", Risk.EXACT, frozenset({"preparation"})

    def predict(self, case: Case, setting: JsonDict) -> Estimate | None:
        return Estimate(value=1.0, low=0.99, high=1.002, n=1, kind=EstimateKind.SIMULATED)

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup


@pytest.mark.parametrize(("share", "tried"), [(0.5, True), (0.002, False)])
def test_a_doubt_of_the_graph_is_no_larger_than_the_stages_it_is_about(share: float, tried: bool) -> None:
    case = sample_case()
    assert isinstance(case.pipeline, Pipeline)
    round_ = case.pipeline.round
    stages = tuple(
        stage.model_copy(update={"seconds": share * round_.step_seconds}) if stage.name == "preparation" else stage
        for stage in round_.stages
    )
    case = dataclasses.replace(case, pipeline=Pipeline(round_.model_copy(update={"stages": stages})))
    queue = build_queue(Registry([Source(Input(), "test")]), case, Choice(), 1.03)
    assert bool(queue.proposals) is tried
    if not tried:
        assert "cannot pay" in queue.skipped[0].reason


def test_a_further_setting_that_cannot_pay_is_not_screened(tmp_path: Path) -> None:
    def told(self: object, case: Case, setting: JsonDict) -> Estimate:
        value = 1.2 if setting["threads"] == 2 else 0.5
        return Estimate(value=value, low=value, high=value, n=1, kind=EstimateKind.TRIED)

    one = strategy("threaded", settings=SETTINGS[:2], predict=told)
    world = World(tmp_path, one, speed=lambda plan: 1.2 if plan.changes else 1.0)
    world.go()
    asked = [plan.setting("threaded") for plan, _ in world.runner.machine.started if plan.changes]
    assert {"threads": 2} in asked
    assert {"threads": 4} not in asked


@pytest.mark.parametrize(
    ("reason", "companions", "again"),
    [
        ("error: RuntimeError: shape '[128]' is invalid (train.py:9)", (), False),
        ("error: RuntimeError: shape '[128]' is invalid (train.py:9)", (Change(strategy="amp"),), True),
        ("timeout: no answer within 20 s (build)", (), True),
        ("out_of_memory: 9 GiB", (), True),
    ],
)
def test_what_raised_is_not_tried_on_another_incumbent(
    reason: str, companions: tuple[Change, ...], again: bool
) -> None:
    trial = Trial(id=1, round=1, strategy="certain", verdict=Verdict.FAILED, reason=reason, companions=companions)
    case = dataclasses.replace(sample_case(), trials=(trial,))
    queue = build_queue(Registry([Source(Certain(), "test")]), case, Choice(), 1.03)
    assert bool(queue.proposals) is again
    assert again or queue.skipped[0].reason == reason


class Silent(Strategy):
    """One that predicts nothing: the ceilings of its stages bound it."""

    name, risk, stages = "silent", Risk.EXACT, frozenset({"forward", "backward", "optimizer"})

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup


class Certain(Input):
    name = "certain"

    def predict(self, case: Case, setting: JsonDict) -> Estimate | None:
        return Estimate(value=1.3, low=1.25, high=1.35, n=1, kind=EstimateKind.SIMULATED)


def test_a_bound_is_no_prediction_and_goes_before_none() -> None:
    queue = build_queue(Registry([Source(Silent(), "test"), Source(Certain(), "test")]), sample_case(), Choice(), 1.01)
    silent, certain = queue.proposals
    assert silent.predicted is not None
    assert silent.predicted.kind is EstimateKind.BOUND
    assert silent.predicted.value == silent.predicted.high > 1.3  # or there would be nothing to tell apart
    assert by_promise([silent, certain]) == [silent, certain], "what is not known counts as the median of the others"


# The first diagnosis of a script: what may pay, by the first look, before anything is compared.

REGISTRY = load_strategies(())
PLACE = {"file": "train.py", "line": 7, "end_line": 7, "call": "DataLoader"}
SHARES = {"data": 0.5, "forward": 0.1, "backward": 0.2, "optimizer": 0.002, "other": 0.198}


def found(choice: Choice, **sites: object) -> tuple[dict[str, float], tuple[str, ...]]:
    loader = {**PLACE, "kind": "loader_training"}
    seen = Sites.model_validate({"command": ("train.py",), "cwd": "/", "sites": (loader,), "shares": SHARES, **sites})
    case = replace(sample_case(), pipeline=None, sites=seen)
    told = opportunities(REGISTRY, case, choice, 1.01)
    assert list(told.at_most) == sorted(told.at_most, reverse=True)
    return {name: value for value, names in told.at_most for name in names}, told.unknown


def test_strategies_are_ranked_by_what_their_stages_leave_to_gain() -> None:
    ranked, unknown = found(Choice())
    assert ranked["workers"] == 2.0
    assert ranked["compile"] == pytest.approx(1 / 0.7)
    assert ranked["threads"] == pytest.approx(1 / 0.698), "lines of the script's own between stages are no operators"
    assert "fused_optimizer" not in ranked, "of 0.2 % of a step nothing can be gained"
    assert "batch_size" not in ranked, "a change of training is no matter of a step's seconds"
    assert ranked["prepared_samples"] == 2.0
    assert not {*ranked} & {*unknown}


def test_what_the_user_left_out_or_no_setup_says_is_not_told() -> None:
    ranked, _ = found(Choice(only=("workers", "amp")))
    assert {*ranked} == {"workers", "amp"}
    ranked, unknown = found(Choice(), sites=())
    assert "workers" not in ranked, "the script has no DataLoader"
    assert "workers" not in unknown


# Comparisons of trainings whose loaders deliver in bunches, on simulated machines where the truth can be computed.


@pytest.mark.parametrize("workers", [2, 8, 16])
@pytest.mark.parametrize("bound", ["input", "computing"])
def test_what_the_other_stage_hides_is_not_accepted(workers: int, bound: str) -> None:
    """With blocks of one to three steps and a trimmed mean, all of twenty were accepted at 2.2x with eight workers."""
    for seed in range(3):
        assert run(LoaderCase(workers, 0.02, bound, 1.0), seed)["decision"] != "accept"


@pytest.mark.parametrize("workers", [2, 8, 16])
@pytest.mark.parametrize("bound", ["input", "computing"])
@pytest.mark.parametrize("gain", [1.25, 2.0])
def test_a_gain_of_the_bound_stage_is_accepted_and_its_interval_holds_it(workers: int, bound: str, gain: float) -> None:
    for seed in range(2):
        found = run(LoaderCase(workers, 0.02, bound, gain), seed)
        assert found["decision"] == "accept"
        assert found["low"] <= gain <= found["high"]
        assert found["seconds"] < 120.0
