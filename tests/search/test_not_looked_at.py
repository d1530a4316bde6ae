"""Looks that are not taken: what no setting can mend, and what cannot pay whatever the graph leaves out."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Estimate, EstimateKind, JsonDict, Plan, Verdict
from autoopt.registry import Registry, Source
from autoopt.search.planner import Choice, build_queue, most_promising
from autoopt.setup import Setup
from autoopt.simplify.pipeline import Pipeline
from autoopt.strategy import Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour
from autoopt.testing.strategies import sample_case
from simulated import World, strategy, verdicts

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
    assert most_promising((silent, certain), lambda proposal: 1.0 if proposal is certain else 1.1) is certain
    assert most_promising((silent,), lambda proposal: 1.0) is silent
