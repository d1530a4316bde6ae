"""The headline: one record, from trainings' own seconds and own steps, that its seconds divide to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Estimate, Headline, Noise, Plan, Verdict
from autoopt.search.accept.evidence import Evidence, TrainedPair
from autoopt.search.accept.time_to_target import headline_of, seconds_of
from autoopt.testing.fakes import Behaviour
from made_up import OBJECTIVE, SAME, comparison, run
from simulated import STEPS, World, product, strategy


def pair(before: float, after: float, speed: float = 1.0, **fields) -> TrainedPair:
    """Both met the target after so many steps; those of the plan are ``speed`` times as fast."""
    old, new = run(0, to=before, fixed_seconds=0.0), run(0, to=after, fixed_seconds=0.0)
    fast = {"training_seconds": new.training_seconds / speed, "evaluation_seconds": new.evaluation_seconds / speed}
    return TrainedPair(baseline=old, best=new.model_copy(update=fast), **fields)


def found(pairs: list[TrainedPair], level: str = "equivalent", speed: float = 1.5, **objective) -> Headline:
    blocks = comparison(speed=speed)
    faster = blocks.incumbent.model_copy(update={"samples_per_second": 1000.0})
    headline = headline_of(
        pairs,
        blocks.model_copy(update={"incumbent": faster}),
        Evidence(baseline_runs=tuple(pair.baseline for pair in pairs)),
        OBJECTIVE.model_copy(update=objective),
        SAME.model_copy(update={"level": level}),
        process_sd=0.02,
    )
    assert headline is not None
    return headline


def test_a_plan_that_is_faster_a_step_and_needs_as_many_more_steps_is_no_faster_to_target() -> None:
    headline = found([pair(100.0, 150.0, 1.5), pair(100.0, 150.0, 1.5)])
    assert headline.kind == "to_target"
    assert headline.value == pytest.approx(1.0, abs=0.05)
    assert headline.steps_ratio is not None
    assert headline.steps_ratio.value == pytest.approx(1 / 1.5, rel=0.05)
    assert headline.step_ratio.value * headline.steps_ratio.value == pytest.approx(headline.value)
    assert headline.baseline_seconds / headline.best_seconds == pytest.approx(headline.value)
    assert headline.low < 1.0 < headline.high


def test_steps_are_set_equal_only_where_the_training_is_identical() -> None:
    """The plan met the target after 60 steps and the baseline after 100."""
    same, own = found([pair(100.0, 60.0)], "identical"), found([pair(100.0, 60.0)], "equivalent")
    assert same.value == pytest.approx(1.0)
    assert same.steps_ratio is None
    assert own.value > 1.3
    assert own.steps_ratio is not None


def test_one_pair_is_a_point_and_verifies_nothing() -> None:
    headline = found([pair(100.0, 100.0, 1.5)])
    assert (headline.low, headline.high, headline.n) == (None, None, 1)
    assert headline.estimate is None
    assert headline.step_ratio.confidence is None
    assert any("one pair" in doubt for doubt in headline.doubts(control_failed=False))
    assert all(seconds is not None and seconds.low == seconds.value for seconds in seconds_of(headline, None))


def test_two_pairs_that_agree_with_the_blocks_are_verified() -> None:
    headline = found([pair(100.0, 100.0, 1.5)] * 2)
    assert headline.agrees
    assert headline.doubts(control_failed=False) == ()
    assert "control failed" in headline.doubts(control_failed=True)[0]
    apart = [pair(100.0, 100.0, 1.5), pair(100.0, 100.0, 1.5, interleaved=False)]
    assert "interleaved" in found(apart).doubts(control_failed=False)[0]


def test_blocks_that_say_more_than_trainings_never_make_the_headline() -> None:
    headline = found([pair(100.0, 100.0, 1.45)] * 2, speed=2.81)
    assert headline.value == pytest.approx(1.45, rel=0.01)
    assert headline.agrees is False
    assert headline.blocks is not None
    assert headline.blocks.value > 2.0
    assert any("disagree" in doubt for doubt in headline.doubts(control_failed=False))


def test_agreement_has_a_margin_that_does_not_grow_with_noise() -> None:
    noisy = [pair(100.0, 100.0, 1.0), pair(100.0, 100.0, 3.0)]
    headline = found(noisy, speed=3.0)
    assert headline.low < 3.0 < headline.high
    assert headline.agrees is False


def test_where_neither_reached_the_target_only_a_step_is_faster() -> None:
    short = TrainedPair(
        baseline=run(0, to=None, best=0.5, fixed_seconds=0.0),
        best=run(0, to=None, best=0.5, fixed_seconds=0.0, training_seconds=1.1),
    )
    headline = found([short, short])
    assert (headline.kind, headline.target_missed) == ("per_step", True)
    assert headline.value == pytest.approx(1.5, rel=0.1)
    assert headline.baseline_seconds < 0.1, "seconds of a step"
    assert "to target" not in headline.text
    assert seconds_of(headline, None) == (None, None)
    assert headline.doubts(control_failed=False)


def test_without_trainings_it_is_modelled_and_to_target_only_where_the_steps_are_the_same() -> None:
    def modelled(level: str) -> Headline:
        headline = headline_of(
            [],
            comparison(),
            Evidence(baseline_runs=(run(0),)),
            OBJECTIVE,
            SAME.model_copy(update={"level": level}),
            process_sd=None,
        )
        assert headline is not None
        return headline

    assert (modelled("identical").kind, modelled("identical").source) == ("to_target", "modelled")
    assert modelled("equivalent").kind == "same_steps"
    assert modelled("identical").doubts(control_failed=False)
    nothing = headline_of([], comparison(), Evidence(), OBJECTIVE, SAME, process_sd=None)
    assert nothing is not None
    assert nothing.kind == "per_step"


def test_without_a_target_a_training_that_went_on_counts_as_far_as_the_other_went() -> None:
    """A first training whose baseline was cut off by its seconds, where the faster plan came further."""
    trainings = TrainedPair(
        baseline=run(0, to=None, steps=480, training_seconds=19.2, fixed_seconds=0.0, evaluation_seconds=0.0),
        best=run(0, to=None, steps=600, training_seconds=12.0, fixed_seconds=0.0, evaluation_seconds=0.0),
    )
    headline = found([trainings], target=None)
    assert headline.kind == "same_steps"
    assert headline.value == pytest.approx(2.0)
    assert (headline.baseline_steps, headline.best_steps) == (480, 480)


def test_seconds_that_do_not_divide_to_the_value_are_no_headline() -> None:
    one = Estimate(value=1.5, low=1.5, high=1.5, n=1, confidence=None)
    known = {"kind": "to_target", "n": 1, "step_ratio": one, "baseline_seconds": 30.0, "source": "trained"}
    with pytest.raises(ValueError, match="another figure"):
        Headline(value=1.5, best_seconds=25.0, **known)
    with pytest.raises(ValueError, match="two pairs"):
        Headline(value=1.5, best_seconds=20.0, low=1.4, high=1.6, **known)


def test_a_control_that_favours_one_side_has_failed() -> None:
    def noise(low: float, high: float) -> Noise:
        return Noise(aa_ratio=Estimate(value=(low + high) / 2, low=low, high=high, n=3))

    assert noise(1.02, 1.06).failed(0.01)
    assert not noise(1.005, 1.06).failed(0.01), "by less than the gain worth having"
    assert noise(0.9, 0.95).failed(0.01)
    assert not Noise().failed(0.01)


@pytest.mark.parametrize(("fixed", "over_planned"), [(4.0, False), (40.0, True)])
def test_the_figures_of_the_first_screen_are_of_one_run(tmp_path: Path, fixed: float, over_planned: bool) -> None:
    """Costs paid once weigh more on the way to a lower target than in the planned run: the figures say which."""

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        return replace(behaviour, startup_seconds=2.0 + fixed * bool(plan.changes))

    world = World(tmp_path, strategy("good"), speed=product({"good": 2.0}), behave=behave, reach=lambda plan: None)
    world.runner.facts = world.runner.facts.model_copy(update={"max_steps": 20 * STEPS})
    outcome = world.go()
    assert outcome.best.plan.names() == ("good",)
    before, after = outcome.baseline.time_to_target_seconds, outcome.best.time_to_target_seconds
    headline = outcome.speedup.headline
    assert before.value / after.value == pytest.approx(headline.value)
    assert outcome.speedup.time_to_target.value == pytest.approx(headline.value)
    assert outcome.speedup.planned_steps == (20 * STEPS if over_planned else None)
    assert headline.source == ("modelled" if over_planned else "trained")
    assert outcome.speedup.end_to_end_verified is not over_planned
    kept = next(trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT)
    assert kept.planned_steps == 20 * STEPS
    assert kept.time_to_target.value > 1.5


def test_steps_that_rounding_costs_are_charged_over_equal_steps_and_never_twice() -> None:
    """Without a target both train as many steps; with one each side's own steps hold the price already."""
    price = SAME.model_copy(
        update={"level": "equivalent", "step_penalty": Estimate(value=1.1, low=1.05, high=1.15, n=32)}
    )
    equal = [pair(100.0, 100.0, 1.5)] * 2
    known = Evidence(baseline_runs=tuple(one.baseline for one in equal))
    free, paid = (
        headline_of(equal, comparison(), known, OBJECTIVE.model_copy(update={"target": None}), quality, 0.02)
        for quality in (SAME, price)
    )
    assert free is not None
    assert paid is not None
    assert free.steps_ratio is None
    assert paid.steps_ratio is not None
    assert paid.steps_ratio.value == pytest.approx(1 / 1.1)
    assert paid.value == pytest.approx(free.value / 1.1, rel=0.05)
    assert paid.of_what == "for the same steps and those that rounding costs"
    reached = headline_of(equal, comparison(), known, OBJECTIVE, price, 0.02)
    assert reached is not None
    assert reached.value == pytest.approx(1.5, rel=0.05)
    modelled = [headline_of([], comparison(), known, OBJECTIVE, quality, None) for quality in (SAME, price)]
    assert modelled[0] is not None
    assert modelled[1] is not None
    assert modelled[1].value < modelled[0].value
    assert modelled[1].best_steps == pytest.approx(1.1 * (modelled[1].baseline_steps or 0.0))
