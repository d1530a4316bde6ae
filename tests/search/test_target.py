"""Crossings of validation curves, censored runs, and ratios of times to the target."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.benchmark.target import Parts, crossing, fit, mean_seconds, parts, reachable, time_ratio
from autoopt.records import Curve, CurvePoint, Estimate
from autoopt.records.messages import TrainingRun


def curve(*metrics: float | None, every: int = 10, seconds: float = 1.0) -> Curve:
    points = tuple(
        CurvePoint(step=every * (i + 1), seconds=seconds * (i + 1), metric=metric) for i, metric in enumerate(metrics)
    )
    return Curve(seed=0, points=points)


def training(c: Curve, steps: int, **fields) -> TrainingRun:
    return TrainingRun(
        **{
            "seed": c.seed,
            "curve": c,
            "seconds": 10.0,
            "training_seconds": 0.1 * steps,
            "evaluation_seconds": 0.5 * len(c.points),
            "evaluations": len(c.points),
            "steps": steps,
            "samples": steps,
            "fixed_seconds": 2.0,
            "reached": None,
            **fields,
        }
    )


def test_crossing_is_interpolated_between_evaluations() -> None:
    found = crossing(curve(0.5, 0.7, 0.9), 0.8, "max")
    assert found.steps == pytest.approx(25)
    assert found.seconds == pytest.approx(2.5)


def test_one_lucky_evaluation_does_not_decide() -> None:
    lucky = curve(0.5, 0.81, 0.6, 0.65, 0.7, 0.9)
    assert crossing(lucky, 0.8, "max").steps > 50


def test_less_is_better_works_the_same() -> None:
    assert crossing(curve(2.0, 1.0, 0.5), 0.75, "min").steps == pytest.approx(25)


@pytest.mark.parametrize("c", [curve(0.1, 0.2), curve(None, None), curve()])
def test_a_target_that_was_not_reached_has_no_time(c: Curve) -> None:
    found = crossing(c, 0.8, "max")
    assert not found.reached
    assert found.steps is None
    assert found.seconds is None
    assert parts(training(c, 20), 0.8, "max") is None


def test_a_target_met_at_the_first_evaluation_is_reached_there() -> None:
    assert crossing(curve(0.9, 0.95), 0.8, "max").steps == 10


metrics = st.lists(st.one_of(st.none(), st.floats(-10, 10)), max_size=12)


@given(metrics, st.floats(-12, 12), st.sampled_from(["max", "min"]))
@settings(max_examples=150, deadline=None)
def test_crossings_are_inside_the_curve_and_monotone_in_the_target(values, target, mode) -> None:
    c = curve(*values)
    found = crossing(c, target, mode)
    assert found.reached == (found.seconds is not None)
    if found.reached:
        assert 0 < found.steps <= 10 * len(values)
        harder = crossing(c, target + (0.1 if mode == "max" else -0.1), mode)
        assert not harder.reached or harder.steps >= found.steps - 1e-9


@given(metrics, st.sampled_from(["max", "min"]))
@settings(max_examples=80, deadline=None)
def test_mirrored_metrics_give_the_mirrored_fit(values, mode) -> None:
    other = "min" if mode == "max" else "max"
    left = fit(curve(*values), mode)
    right = fit(curve(*[None if v is None else -v for v in values]), other)
    assert (left is None) == (right is None)
    if left is not None:
        assert left.metrics == pytest.approx(-right.metrics)
        assert left.residual == pytest.approx(right.residual)


def test_a_target_in_reach_is_what_every_run_ended_at_less_the_tolerance() -> None:
    runs = [curve(0.5, 0.8), curve(0.4, 0.75)]
    assert reachable(runs, "max", 0.01) == pytest.approx(0.75 * 0.99)
    assert reachable(runs, "min", 0.01) is not None
    assert reachable([curve(None)], "max", 0.01) is None
    for c in runs:
        assert crossing(c, reachable(runs, "max", 0.01), "max").reached


def test_a_reachable_target_of_a_falling_metric_lies_above_it() -> None:
    assert reachable([curve(2.0, 1.0), curve(2.0, 1.2)], "min", 0.1) == pytest.approx(1.2 * 1.1)


def test_parts_add_up() -> None:
    run = training(curve(0.5, 0.7, 0.9), 30)
    found = parts(run, 0.8, "max")
    assert found == Parts(2.0, pytest.approx(0.1), pytest.approx(25), 0.5, 10.0)
    assert found.seconds == pytest.approx(2.0 + 2.5 + 3 * 0.5)
    assert parts(run, None, "max").steps == 30
    assert parts(run, 0.8, "max", step_seconds=0.2).step_seconds == 0.2


def test_fixed_cost_is_paid_once_however_long_the_run() -> None:
    one = Parts(30.0, 0.1, 100)
    assert one.planned(1000).seconds - one.seconds == pytest.approx(90.0)


def test_compilation_pays_only_in_long_runs() -> None:
    eager, compiled = Parts(2.0, 0.10, 600), Parts(40.0, 0.05, 600)
    speed = Estimate(value=2.0, low=1.9, high=2.1, n=3)
    short = time_ratio([eager], [compiled], speed, seed_noise=False)
    long = time_ratio([eager.planned(60_000)], [compiled.planned(60_000)], speed, seed_noise=False)
    assert short.high < 1.0
    assert long.low > 1.8


def test_exact_change_has_no_seed_noise() -> None:
    speed = Estimate(value=1.5, low=1.45, high=1.55, n=3)
    found = time_ratio([Parts(0.0, 0.15, 100)], [Parts(0.0, 0.10, 100)], speed, seed_noise=False)
    assert found.value == pytest.approx(1.5)
    assert found.low == pytest.approx(1.45, rel=0.01)
    assert found.high == pytest.approx(1.55, rel=0.01)


def test_more_seeds_narrow_the_interval() -> None:
    rng = np.random.default_rng(0)

    def width(n: int) -> float:
        before = [Parts(0.0, 0.1, 100 * math.exp(0.05 * rng.standard_normal())) for _ in range(n)]
        found = time_ratio(before, [Parts(0.0, 0.1, 80)] * n)
        return found.high / found.low

    assert width(2) > width(4) > width(12)


def test_seeds_are_paired() -> None:
    with pytest.raises(ValueError, match="2 before and 1 after"):
        time_ratio([Parts(0, 1, 1)] * 2, [Parts(0, 1, 1)])


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize("spread", [0.03, 0.15])
def test_interval_of_the_time_ratio_covers(seeds: int, spread: float) -> None:
    """Steps to the target scatter over seeds; the true ratio lies inside in 93 % of cases or more."""
    rng, truth, held = np.random.default_rng(1), math.log(1.3), 0
    for _ in range(100):
        noise = spread * rng.standard_normal(seeds)
        before = [Parts(0.0, 0.1, 130.0)] * seeds
        after = [Parts(0.0, 0.1, 100.0 * math.exp(e)) for e in noise]
        found = time_ratio(before, after, rng=rng)
        held += found.low <= math.exp(truth) <= found.high
    assert held >= 90


def test_mean_seconds_of_no_run_is_not_a_number() -> None:
    assert mean_seconds([]) is None
    found = mean_seconds([100.0, 110.0])
    assert found.low < found.value < found.high
    assert found.n == 2
