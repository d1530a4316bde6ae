"""Sizes that a run trained as points of result.json, with both power laws or why there is none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.records import Change, Curve, CurvePoint, Objective, Plan
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import TrainedPair
from autoopt.search.accept.trainings import Trainings
from autoopt.search.model_scaling import common_step, model_scaling, scaling_of

OBJECTIVE = Objective(
    metric="accuracy", mode="max", target=0.9, target_source="user", tolerance=0.005, min_gain=0.01
)  # fmt: skip
OTHER = Change(strategy="amp", setting={})


def run(parameters: int, seed: int = 0, steps: int = 60, seconds: float | None = 1.0, lack: float = 0.3) -> TrainingRun:
    """A training that lacks less the larger it is, by the power 0.25 of its size, and the longer it goes on."""
    lacks = lack * (parameters / 1e4) ** -0.25 * (1 + seed / 50)
    steps_seen = range(20, steps + 1, 20)
    points = tuple(CurvePoint(step=at, seconds=at / 10, metric=1 - lacks * 20 / at) for at in steps_seen)
    curve = Curve(seed=seed, points=points, reached=seconds is not None, seconds_to_target=seconds)
    return TrainingRun(
        seed=seed, curve=curve, seconds=6.0, training_seconds=6.0, evaluation_seconds=0.0, evaluations=len(points),
        steps=steps, samples=steps, fixed_seconds=0.0, reached=seconds is not None, trained_parameters=parameters,
    )  # fmt: skip


def sized(width: int | None, *others: Change) -> Plan:
    setting = {"build": "m:build", "arguments": {"width": width}}
    change = () if width is None else (Change(strategy="model_size", setting=setting),)
    return Plan(changes=(*others, *change))


def state_of(*pairs: tuple[Plan, Plan]) -> Any:
    """A search whose trials, by number, compared these incumbents with these candidates."""
    trials = [SimpleNamespace(id=number, strategy="model_size") for number, _ in enumerate(pairs)]
    comparisons = {
        number: SimpleNamespace(incumbent=SimpleNamespace(plan=one), candidate=SimpleNamespace(plan=other))
        for number, (one, other) in enumerate(pairs)
    }
    return SimpleNamespace(trials=trials, comparisons=comparisons, objective=OBJECTIVE)


def trainings_of(*pairs: tuple[Plan, TrainingRun, Plan, TrainingRun]) -> Trainings:
    steps = SimpleNamespace(step=lambda kind, key, measure, model: measure())
    made = Trainings(SimpleNamespace(), steps)  # type: ignore[arg-type]
    for one, before, other, after in pairs:
        both = TrainedPair(baseline=before, best=after)
        made._runner = SimpleNamespace(train_in_turns=lambda *_, pair=both, **__: pair)  # type: ignore[assignment]
        made.in_turns(one, other, before.seed, purpose="trial", remember=True)
    return made


WHOLE, HALF, QUARTER = sized(None), sized(32), sized(16)


def swept(*seeds: int) -> Trainings:
    pairs = []
    for seed in seeds:
        pairs.append((WHOLE, run(40_000, seed), HALF, run(10_000, seed, seconds=0.6)))
        pairs.append((HALF, run(10_000, seed, seconds=0.6), QUARTER, run(2_500, seed, steps=40, seconds=0.4)))
    return trainings_of(*pairs)


def test_three_sizes_give_both_laws() -> None:
    found = model_scaling(state_of((WHOLE, HALF), (HALF, QUARTER)), swept(0, 1))
    assert found is not None
    assert [point.parameters for point in found.points] == [2_500, 10_000, 40_000]
    assert [point.trial for point in found.points] == [1, 0, None]
    assert [point.arguments for point in found.points] == [{"width": 16}, {"width": 32}, {}]
    assert found.steps == 40, "the last step at which all were evaluated"
    assert found.error is not None
    assert found.error.exponent.value == pytest.approx(-0.25, abs=1e-6)
    assert (found.error.sizes, found.error.runs) == (3, 6)
    assert found.error.at_target is not None
    assert found.error.at_target.value == pytest.approx(1e4 * (0.1 / (0.15 * 1.01)) ** -4, rel=0.02)
    assert found.seconds is not None
    assert found.seconds.exponent.value > 0
    assert found.missing == {}


def test_trainings_that_the_verification_forgot_are_still_points() -> None:
    trainings = swept(0, 1)
    trainings.forget(HALF)
    found = model_scaling(state_of((WHOLE, HALF), (HALF, QUARTER)), trainings)
    assert found is not None
    assert len(found.points) == 3


def test_two_sizes_are_points_and_no_law() -> None:
    found = model_scaling(state_of((WHOLE, HALF)), trainings_of((WHOLE, run(40_000), HALF, run(10_000))))
    assert found is not None
    assert len(found.points) == 2
    assert found.error is None
    assert found.missing["error"] == "2 sizes of 3 that a line needs"


def test_a_size_that_misses_the_target_has_no_time_and_says_so() -> None:
    trainings = trainings_of(
        (WHOLE, run(40_000), HALF, run(10_000, seconds=0.6)), (HALF, run(10_000), QUARTER, run(2_500, seconds=None))
    )
    found = model_scaling(state_of((WHOLE, HALF), (HALF, QUARTER)), trainings)
    assert found is not None
    assert found.error is not None
    assert found.seconds is None
    assert found.missing["seconds"] == "2 sizes of 3 that a line needs: 1 of 3 missed the target from a seed"


def test_sizes_on_different_plans_are_not_one_line() -> None:
    """Seconds with another change are of another machine, so to speak: the largest family of one plan is taken."""
    trainings = trainings_of(
        (WHOLE, run(40_000), HALF, run(10_000)),
        (sized(None, OTHER), run(40_000), sized(32, OTHER), run(10_000)),
        (sized(None, OTHER), run(40_000), sized(16, OTHER), run(2_500)),
    )
    state = state_of(
        (WHOLE, HALF), (sized(None, OTHER), sized(32, OTHER)), (sized(None, OTHER), sized(16, OTHER))
    )  # fmt: skip
    found = model_scaling(state, trainings)
    assert found is not None
    assert [point.trial for point in found.points] == [2, 1, None]


def test_nothing_is_told_of_a_search_without_sizes_and_of_sizes_without_trainings() -> None:
    assert model_scaling(SimpleNamespace(trials=[]), swept(0)) is None  # type: ignore[arg-type]
    bare = model_scaling(state_of((WHOLE, HALF)), trainings_of())
    assert bare is not None
    assert bare.points == ()
    assert bare.missing["error"] == "0 sizes of 3 that a line needs"


def test_a_metric_whose_best_value_is_not_known_has_no_error() -> None:
    sizes = [({}, None, (run(size, lack=-30.0),)) for size in (2_500, 10_000, 40_000)]
    assert "between zero and one" in scaling_of(sizes, OBJECTIVE).missing["error"]  # type: ignore[arg-type]
    lower = scaling_of(sizes, OBJECTIVE.model_copy(update={"mode": "min"}))  # type: ignore[arg-type]
    assert lower.error is not None, "what is to be small is its own error"


def test_trainings_without_a_step_in_common_are_not_compared() -> None:
    first = run(2_500)
    points = tuple(point.model_copy(update={"step": point.step + 1}) for point in first.curve.points)
    other = first.model_copy(update={"curve": first.curve.model_copy(update={"points": points})})
    assert common_step([first, other]) is None
    found = scaling_of([({}, 1, (other,)), ({}, None, (run(10_000),))], OBJECTIVE)
    assert found.missing["error"] == "the trainings have no evaluation after the same number of steps"
