"""A gain that is larger than all that the rest promise is proved before anything else is looked at."""

from __future__ import annotations

from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoopt.records import Estimate, EstimateKind, Verdict
from autoopt.search.budget_allocation import BudgetAllocation
from autoopt.search.proofs import Costs
from autoopt.search.screened import Screened, outstanding
from autoopt.strategy import Strategy
from autoopt.testing.fakes import NoiseModel
from made_up import comparison
from simulated import World, product, strategy


def seen(name: str, gain: float, error: float = 0.05, stage: str = "forward") -> Screened:
    candidate: Any = SimpleNamespace(strategy=SimpleNamespace(name=name, stages=(stage,)), stacked=False)
    trial: Any = SimpleNamespace(id=1)
    return Screened(candidate, trial, log(gain), (comparison(),), error)


def predicted(value: float, kind: EstimateKind = EstimateKind.SIMULATED, low: float | None = None) -> Estimate:
    return Estimate(value=value, low=low or 0.9 * value, high=1.1 * value, n=1, kind=kind)


def test_one_gain_stands_above_all_that_the_rest_promise() -> None:
    large = seen("amp", 2.5)
    assert outstanding([large], []) is large
    assert outstanding([large, seen("other", 1.1)], [predicted(1.2)]) is large
    assert outstanding([large], [predicted(1.5), predicted(1.8)]) is None, "together they promise more"
    assert outstanding([large], [None]) is None, "nobody knows what it brings"
    assert outstanding([large], [predicted(9.0, EstimateKind.BOUND)]) is None
    assert outstanding([seen("amp", 2.5, error=0.4)], []) is None, "it may well be small"
    assert outstanding([seen("amp", 1.25, error=0.001)], []) is None, "it is"
    assert outstanding([], [predicted(2.0)]) is None


def test_rivals_promise_nothing_more_than_the_best_of_them() -> None:
    best, rival = seen("workers", 2.0, stage="preparation"), seen("cache", 1.9, stage="storage")
    assert outstanding([best, rival], []) is best
    assert outstanding([best, seen("amp", 1.9)], []) is None


def test_it_is_kept_before_the_rest_has_a_look_and_the_rest_is_found_on_it(tmp_path: Path) -> None:
    speeds = {"idle": 1.0, "huge": 3.0, "small": 1.15, "late": 1.2}

    def told(name: str) -> Strategy:
        return strategy(name, predict=lambda self, case, setting: predicted(speeds[name] * 1.02, low=0.99))

    made = World(
        tmp_path,
        *map(told, speeds),
        speed=product(speeds),
        noise=NoiseModel("normal", process_sd=0.01),
        budget=900.0,
    )
    outcome = made.go()
    assert set(outcome.best.plan.names()) == {"huge", "small", "late"}
    looks = [(look.incumbent.plan.names(), look.candidate.plan.names()) for look in outcome.state.looks]
    assert looks.index(((), ("huge",))) == len([one for one in looks if one[0] == ()]) - 1
    assert (("huge",), ("huge", "late")) in looks
    kept = [trial.strategy for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert kept[0] == "huge"


def test_the_way_back_is_kept_for_what_may_bring_more_than_is_to_be_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether trainings will show one to be as good is even: the other, for certain, is worth half of its gain."""
    monkeypatch.setattr(Costs, "pairs", lambda self, screened: 30.0)
    context: Any = SimpleNamespace(allocation=BudgetAllocation(budget=240.0, baseline_seconds=20.0, start_seconds=2.0))
    costs = Costs(context, cast(Any, None))
    doubtful = seen("amp", 2.2)
    assert costs.way_back(doubtful, [seen("channels_last", 1.2)]) == 0.0
    assert costs.way_back(doubtful, [seen("channels_last", 1.2), seen("cache", 1.6)]) > 30.0
    assert costs.way_back(doubtful, []) == 0.0


def test_all_that_predictions_promise_has_the_first_look(tmp_path: Path) -> None:
    """Three changes whose predictions hold: one look and one proof in place of three of each."""
    speeds = {"idle": 1.0, "one": 1.3, "two": 1.25, "three": 1.2, "slow": 0.8}

    def told(name: str) -> Strategy:
        return strategy(name, predict=lambda self, case, setting: predicted(speeds[name]))

    noise = NoiseModel("normal", process_sd=0.01)
    made = World(tmp_path, *map(told, speeds), speed=product(speeds), noise=noise, budget=300.0)
    outcome = made.go()
    assert outcome.state.looks[0].candidate.plan.names() == ("one", "two", "three")
    assert outcome.best.plan.names() == ("one", "two", "three")
    kept = [trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert len(kept) == 1
    assert kept[0].predicted is not None
    assert kept[0].predicted.value == pytest.approx(1.3 * 1.25 * 1.2)
