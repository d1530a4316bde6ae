"""Quality by the metric of trainings: differences over seeds, and evaluations that are not the baseline's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t as student

from autoopt.records import Curve, CurvePoint, Estimate, Noise
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.metric import (
    FurtherSteps,
    MetricDifference,
    fewer_evaluated,
    metric_difference,
    metric_quality,
)
from autoopt.search.accept.trainings import SCATTER, ratio_of_pairs
from made_up import NOISE, OBJECTIVE, evidence, run


def test_one_seed_of_unknown_noise_has_a_difference_and_no_interval() -> None:
    difference = metric_difference([(run(0), run(0, best=0.89))], OBJECTIVE, Noise())
    assert difference is not None
    shown = metric_quality(difference, OBJECTIVE)
    assert shown.difference is None, "an interval of no width would claim certainty"
    assert shown.candidate is not None
    assert "which gives no interval" in (shown.detail or "")
    assert "over 1 seed," in (shown.detail or "")
    alike = metric_difference([(run(0), run(0, best=0.89))] * 2, OBJECTIVE, Noise())
    assert alike is not None
    assert "over 2 seeds," in (metric_quality(alike, OBJECTIVE).detail or "")
    assert metric_quality(alike, OBJECTIVE).difference is None, "a script's own seed gives the same training twice"


def test_a_loss_within_the_tolerance_is_proved_and_not_lost_however_certain_it_is() -> None:
    """Surely worse than before, and surely by less than what is allowed."""
    estimate = Estimate(value=-0.002, low=-0.0035, high=-0.0005, n=3)
    found = MetricDifference(estimate, error=0.0003, margin=0.0045, baseline=0.9, candidate=0.898, highest=-0.0005)
    assert found.proved
    assert not found.lost
    beyond = Estimate(value=-0.006, low=-0.0075, high=-0.0045, n=3)
    assert MetricDifference(beyond, 0.0003, margin=0.0045, baseline=0.9, candidate=0.894, highest=-0.0045).lost


def simulated_difference(rng, loss: float, seeds: int):
    """A metric's difference over seeds whose values scatter by 0.004 each, as the gate has it."""
    before = [run(s, to=None, best=0.9 + 0.004 * rng.standard_normal()) for s in range(seeds)]
    after = [run(s, to=None, best=0.9 - loss + 0.004 * rng.standard_normal()) for s in range(seeds)]
    return metric_difference(list(zip(before, after, strict=True)), OBJECTIVE, Noise(seed_noise=0.004))


def test_rates_of_false_losses_and_of_true_losses_that_pass() -> None:
    rng, most = np.random.default_rng(5), 4
    same = [[simulated_difference(rng, 0.0, n) for n in range(2, most + 1)] for _ in range(120)]
    lost = [[simulated_difference(rng, 0.009, n) for n in range(2, most + 1)] for _ in range(120)]
    assert np.mean([any(d.lost for d in looks) for looks in same]) <= 0.02
    assert np.mean([any(d.proved for d in looks) for looks in lost]) <= 0.05


@pytest.mark.parametrize(("seeds", "scatter"), [(3, 0.002), (4, 0.004), (6, 0.004)])
def test_a_loss_that_would_have_been_seen_is_seen_with_its_power(seeds: int, scatter: float) -> None:
    """The sentence of the page, tried: of losses as large as it names, four fifths are not shown to be as good."""
    rng, margin, error = np.random.default_rng(9), 0.0045, scatter * np.sqrt(2 / seeds)
    reach = float(student.ppf(0.975, seeds)) * error

    def seen(loss: float) -> MetricDifference:
        value = -loss + error * rng.standard_normal()
        estimate = Estimate(value=value, low=value - reach, high=value + reach, n=seeds)
        return MetricDifference(estimate, error, margin, 0.9, 0.9 + value, highest=value + 2 * reach)

    proved = next((one for one in (seen(0.0) for _ in range(2000)) if one.proved), None)
    if proved is None:
        undecided = seen(0.0)
        assert undecided.seeds_wanted is None or undecided.seeds_wanted > seeds
        return
    assert proved.detectable is not None
    missed = np.mean([seen(proved.detectable * margin).proved for _ in range(4000)])
    assert missed == pytest.approx(0.2, abs=0.03) or proved.detectable == 0.0
    assert np.mean([seen(margin).proved for _ in range(4000)]) <= 0.05


@pytest.mark.parametrize(("seeds", "allowed"), [(2, 1.5), (3, 1.3), (4, None)])
def test_further_steps_as_many_as_it_names_are_noticed_with_its_power(seeds: int, allowed: float | None) -> None:
    rng = np.random.default_rng(11)

    def seen(ratio: float) -> FurtherSteps:
        return FurtherSteps(ratio_of_pairs(np.log(ratio) + SCATTER * rng.standard_normal(seeds)))

    named = float(np.median([seen(1.0).detectable(allowed) for _ in range(500)]))
    drawn = [seen(named).ratio for _ in range(2000)]
    noticed = [one.low > 1.0 if allowed is None else one.high >= allowed for one in drawn]
    assert np.mean(noticed) == pytest.approx(0.8, abs=0.07)


def test_more_frequent_evaluations_are_quality_lost() -> None:
    one = run(0, to=None, best=0.88)
    often = run(0, to=None, best=0.89)
    points = [CurvePoint(step=s, seconds=0.01 * s, metric=0.004 * s) for s in range(10, 221, 10)]
    often = often.model_copy(update={"curve": Curve(seed=0, points=tuple(points))})
    lost = fewer_evaluated([(one, often)])
    assert lost == "evaluated every 10 steps where the baseline was evaluated every 20"
    assert fewer_evaluated([(often, one)]) == ""
    cut_off = (*one.curve.points[:2], one.curve.points[1].model_copy(update={"step": 44}))
    assert fewer_evaluated([(one, one.model_copy(update={"curve": Curve(seed=0, points=cut_off)}))]) == ""
    twice_the_batch = often.model_copy(update={"samples": 2 * often.samples})
    assert fewer_evaluated([(one, twice_the_batch)]) == ""
    judged = judge_runs(evidence((often, often.model_copy(update={"seed": 1}))), OBJECTIVE, NOISE)
    assert judged.passed is False
