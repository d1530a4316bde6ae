"""Time to the target: crossings of curves, trainings in turns, and the one headline."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.target import Parts, crossing, fit, parts, reachable, time_ratio
from autoopt.errors import TrialFailed
from autoopt.records import Curve, CurvePoint, Estimate, Headline, Noise, Plan, RunParts, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.registry import Registry
from autoopt.script.whole_run import WholeRun
from autoopt.search.accept.evidence import TrainedPair, length_scatter
from autoopt.search.accept.time_to_target import Trained, headline_of, seconds_of
from autoopt.search.accept.trainings import next_session, ratio_of_pairs
from autoopt.search.trial_runner import Turns
from autoopt.testing.fakes import Behaviour
from made_up import OBJECTIVE, SAME, breakers_trial, comparison, evidence, run
from simulated import STEPS, World, product, strategy

WITHOUT_TARGET = OBJECTIVE.model_copy(update={"target": None})


def curve(*metrics: float | None, every: int = 10, seconds: float = 1.0) -> Curve:
    points = tuple(
        CurvePoint(step=every * (i + 1), seconds=seconds * (i + 1), metric=metric) for i, metric in enumerate(metrics)
    )
    return Curve(seed=0, points=points)


def training(c: Curve, steps: int) -> TrainingRun:
    evaluations, timed = len(c.points), {"training_seconds": 0.1 * steps, "fixed_seconds": 2.0}
    evaluated = {"evaluations": evaluations, "evaluation_seconds": 0.5 * evaluations}
    return run(c.seed, curve=c, steps=steps, **timed, **evaluated)


@pytest.mark.parametrize(
    ("c", "target", "mode", "low", "high"),
    [
        (curve(0.5, 0.7, 0.9), 0.8, "max", 25, 25),  # between two evaluations
        (curve(0.5, 0.81, 0.6, 0.65, 0.7, 0.9), 0.8, "max", 50, 60),  # one lucky evaluation does not decide
        (curve(2.0, 1.0, 0.5), 0.75, "min", 25, 25),
        (curve(0.9, 0.95), 0.8, "max", 10, 10),  # met at the first evaluation
        (curve(0.1, 0.2), 0.8, "max", None, None),
        (curve(None, None), 0.8, "max", None, None),
        (curve(), 0.8, "max", None, None),
    ],
)
def test_a_curve_crosses_its_target(c: Curve, target: float, mode: str, low: float | None, high: float | None) -> None:
    found = crossing(c, target, mode)
    if low is None:
        assert found is parts(training(c, 20), target, mode) is None
    else:
        assert low - 1e-6 <= found <= high + 1e-6


metrics = st.lists(st.one_of(st.none(), st.floats(-10, 10)), max_size=12)


@given(metrics, st.floats(-12, 12), st.sampled_from(["max", "min"]))
@settings(max_examples=150, deadline=None)
def test_crossings_are_inside_the_curve_and_monotone_in_the_target(values, target, mode) -> None:
    c = curve(*values)
    found = crossing(c, target, mode)
    if found is not None:
        assert 0 < found <= 10 * len(values)
        harder = crossing(c, target + (0.1 if mode == "max" else -0.1), mode)
        assert harder is None or harder >= found - 1e-9


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


def test_a_target_in_reach_is_what_the_run_ended_at_less_the_tolerance() -> None:
    run = curve(0.4, 0.75)
    assert reachable(run, "max", 0.01) == pytest.approx(0.75 * 0.99)
    assert reachable(curve(2.0, 1.2), "min", 0.1) == pytest.approx(1.2 * 1.1)
    assert reachable(curve(None), "max", 0.01) is None
    assert crossing(run, reachable(run, "max", 0.01), "max") is not None


def test_parts_add_up() -> None:
    run = training(curve(0.5, 0.7, 0.9), 30)
    found = parts(run, 0.8, "max")
    assert found == Parts(2.0, pytest.approx(0.1), pytest.approx(25), 0.5, 10.0)
    assert found.seconds == pytest.approx(2.0 + 2.5 + 3 * 0.5)
    assert parts(run, None, "max").steps == 30
    assert parts(run, 0.8, "max", step_seconds=0.2).step_seconds == 0.2


def test_compilation_pays_only_in_long_runs() -> None:
    eager, compiled = Parts(2.0, 0.10, 600), Parts(40.0, 0.05, 600)
    speed = Estimate(value=2.0, low=1.9, high=2.1, n=3)
    assert time_ratio(eager, compiled, speed).high < 1.0
    assert time_ratio(eager.planned(60_000), compiled.planned(60_000), speed).low > 1.8


def test_exact_change_has_no_seed_noise() -> None:
    speed = Estimate(value=1.5, low=1.45, high=1.55, n=3)
    found = time_ratio(Parts(0.0, 0.15, 100), Parts(0.0, 0.10, 100), speed)
    assert found.value == pytest.approx(1.5)
    assert found.low == pytest.approx(1.45, rel=0.01)
    assert found.high == pytest.approx(1.55, rel=0.01)


# The headline: one record, from trainings' own seconds and own steps, that its seconds divide to.


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
        evidence(baseline=tuple(pair.baseline for pair in pairs), objective=OBJECTIVE.model_copy(update=objective)),
        SAME.model_copy(update={"level": level}),
    )
    assert headline is not None
    return headline


def test_one_pair_is_a_point_and_verifies_nothing() -> None:
    headline = found([pair(100.0, 100.0, 1.5)])
    assert (headline.low, headline.high, headline.n) == (None, None, 1)
    assert headline.estimate is None
    assert headline.step_ratio.confidence is None
    assert any("one pair" in doubt for doubt in headline.doubts(control_failed=False))
    assert all(seconds is not None and seconds.low == seconds.value for seconds in seconds_of(headline, None))


EVEN, APART = pair(100.0, 100.0, 1.5), pair(100.0, 100.0, 1.5, interleaved=False)


@pytest.mark.parametrize(
    ("pairs", "asked", "value", "steps_ratio", "agrees", "doubt"),
    [
        ([pair(100.0, 150.0, 1.5)] * 2, {}, 1.0, 1 / 1.5, True, "the interval includes no gain"),
        ([pair(100.0, 60.0)], {"level": "identical"}, 1.0, None, False, "one pair"),
        ([pair(100.0, 60.0)], {}, 1.667, 1.667, False, "one pair"),
        ([EVEN] * 2, {}, 1.5, None, True, ""),
        ([EVEN, APART], {}, 1.5, None, True, "one after the other"),
        ([pair(100.0, 100.0, 1.45)] * 2, {"speed": 2.81}, 1.45, None, False, "disagree"),
        ([pair(100.0, 100.0), pair(100.0, 100.0, 3.0)], {"speed": 3.0}, 1.732, None, False, "disagree"),
    ],
    ids=["more steps", "identical", "fewer steps", "two pairs", "apart", "other blocks", "noisy"],
)
def test_trainings_make_the_headline_and_blocks_are_held_against_it(
    pairs: list[TrainedPair],
    asked: dict[str, Any],
    value: float,
    steps_ratio: float | None,
    agrees: bool,
    doubt: str,
) -> None:
    """Steps are set equal only where the training is identical; the margin of agreement does not grow with noise."""
    headline = found(pairs, **asked)
    assert headline.kind == "to_target"
    assert headline.value == pytest.approx(value, rel=0.08)
    assert (headline.steps_ratio is None) is (steps_ratio is None)
    steps = headline.steps_ratio.value if headline.steps_ratio else 1.0
    assert steps == pytest.approx(steps_ratio or 1.0, rel=0.08)
    assert headline.step_ratio.value * steps == pytest.approx(headline.value)
    assert headline.agrees is agrees
    doubts = headline.doubts(control_failed=False)
    assert doubt in " ".join(doubts)
    assert bool(doubts) is bool(doubt)
    assert "control failed" in headline.doubts(control_failed=True)[-1]


@pytest.mark.parametrize(
    ("whole", "planned", "ratio"), [(False, None, 2.0), (False, 100, 2.0), (False, 1000, 2.0), (True, 100, 3.0)]
)
def test_what_a_script_imports_is_a_part_of_its_trainings(whole: bool, planned: int | None, ratio: float) -> None:
    """A trial's process begins with torch at hand; whole runs hold the interpreter's start themselves."""
    before = run(0, to=100.0, fixed_seconds=0.0)
    seconds = before.training_seconds + before.evaluation_seconds
    fast = {"training_seconds": before.training_seconds / 3, "evaluation_seconds": before.evaluation_seconds / 3}
    runs = before, before.model_copy(update=fast)
    if whole:
        runs = (WholeRun(seconds, (0.9,)).as_training(100, 0), WholeRun(seconds / 3, (0.9,)).as_training(100, 0))
    start = RunParts(imports_seconds=seconds / 3)
    known = evidence(baseline=runs[:1], objective=WITHOUT_TARGET, run=start, planned_steps=planned)
    trained = Trained.of([TrainedPair(baseline=runs[0], best=runs[1], whole=whole)] * 2, known, None)
    (old, new), *_ = trained.timed
    assert old.seconds / new.seconds == pytest.approx(ratio, rel=1e-3)


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
        known = evidence(baseline=(run(0),))
        headline = headline_of([], comparison(), known, SAME.model_copy(update={"level": level}))
        assert headline is not None
        return headline

    assert (modelled("identical").kind, modelled("identical").source) == ("to_target", "modelled")
    assert modelled("equivalent").kind == "same_steps"
    assert modelled("identical").doubts(control_failed=False)
    nothing = headline_of([], comparison(), evidence(baseline=()), SAME)
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


def test_trainings_that_were_cut_short_are_put_together_to_the_planned_run() -> None:
    """Their start is a larger share of them, and the evaluations that they did not come to are of the run as well."""
    cut = {"fixed_seconds": 4.0, "evaluation_seconds": 0.0, "evaluations": 0, "curve": curve()}
    trainings = TrainedPair(
        baseline=run(0, to=None, steps=100, training_seconds=10.0, **cut),
        best=run(0, to=None, steps=100, training_seconds=5.0, **cut),
    )
    whole = RunParts(imports_seconds=1.0, evaluation_seconds=2.0, evaluate_every=200.0)
    known = evidence(baseline=(trainings.baseline,), objective=WITHOUT_TARGET, planned_steps=400, run=whole)
    headline = headline_of([trainings], comparison(), known, SAME)
    assert headline is not None
    assert (headline.kind, headline.source, headline.planned) == ("same_steps", "modelled", True)
    assert headline.baseline_seconds == pytest.approx(1 + 4 + 400 * 0.1 + 2 * 2)
    assert headline.best_seconds == pytest.approx(1 + 4 + 400 * 0.05 + 2 * 2)
    assert (round(headline.baseline_steps), headline.pairs, headline.low) == (400, 1, None)
    assert headline.text == "1.69x faster over the planned run, modelled, one pair of trainings"
    assert "shorter than the planned run" in headline.doubts(control_failed=False)[0]
    to_the_end = headline_of([trainings], comparison(), known.model_copy(update={"planned_steps": 100}), SAME)
    assert to_the_end is not None
    assert to_the_end.source == "trained"


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
    known = evidence(baseline=tuple(one.baseline for one in equal))
    without = known.model_copy(update={"objective": WITHOUT_TARGET})
    free, paid = (headline_of(equal, comparison(), without, quality) for quality in (SAME, price))
    assert free.steps_ratio is None
    assert paid.steps_ratio.value == pytest.approx(1 / 1.1)
    assert paid.value == pytest.approx(free.value / 1.1, rel=0.05)
    assert paid.of_what == "for the same steps and those that rounding costs"
    reached = headline_of(equal, comparison(), known, price)
    assert reached.value == pytest.approx(1.5, rel=0.05)
    modelled = [headline_of([], comparison(), known, quality) for quality in (SAME, price)]
    assert modelled[1].value < modelled[0].value
    assert modelled[1].best_steps == pytest.approx(1.1 * (modelled[1].baseline_steps or 0.0))


# Whole trainings in turns: each one's own seconds, the idle one frozen, the ratio paired by seed.


def run_of(seconds: float) -> TrainingRun:
    return run(0, curve=Curve(seed=0), seconds=seconds, steps=10, reached=True)


class Machine:
    """Two processes on one machine: no two may run at once, and its speed falls steadily."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.now = 0.0
        self.legs: list[int] = []

    @property
    def slowness(self) -> float:
        return 1.0 + 0.02 * self.now


class FakeProcess:
    def __init__(self, machine: Machine, name: int, work: float, fails: bool = False) -> None:
        self.machine, self.name, self.work, self.spent, self.fails = machine, name, work, 0.0, fails
        self.closed = False
        machine.running.add(name)

    def call(self, task: str, *, seconds: float, **_):
        assert self.machine.running == {self.name}, "the other one must be frozen"
        if self.fails:
            raise TrialFailed("crashed", "signal 9")
        self.machine.legs.append(self.name)
        took = min(seconds, self.work * self.machine.slowness)
        self.work -= took / self.machine.slowness
        self.machine.now += took
        self.spent += took
        over = self.work <= 1e-9
        return {
            "over": over,
            "seconds": self.spent,
            "run": run_of(self.spent).model_dump() if over else None,
        }

    def freeze(self) -> None:
        self.machine.running.discard(self.name)

    def thaw(self) -> None:
        self.machine.running.add(self.name)

    def close(self) -> None:
        self.closed = True
        self.machine.running.discard(self.name)


def test_a_machine_that_drifts_drifts_for_both() -> None:
    machine = Machine()
    one, other = FakeProcess(machine, 0, 40.0), FakeProcess(machine, 1, 20.0)
    before, after = Turns((one, other), {"max_seconds": 100.0}, seconds=40.0, speedup=2.0).run(first=0)
    assert machine.now > 60.0 * 1.3, "the machine did become slower"
    assert before.seconds / after.seconds == pytest.approx(2.0, rel=0.03)
    assert machine.legs[:4] == [0, 1, 1, 0]
    assert one.closed
    assert other.closed


class Endless(FakeProcess):
    """A training whose target is out of reach: its time is up at some step, or the other's word ends it."""

    def call(self, task: str, *, seconds: float, no_further: list[int] | None = None, **arguments):
        known = super().call(task, seconds=seconds, **arguments)
        steps = int(10 * self.spent / (1.0 if self.name == 0 else 0.5))
        ended = no_further is not None and steps >= no_further[0]
        if known["over"] or ended:
            why = "steps" if ended else "seconds"
            run = run_of(self.spent).model_copy(update={"reached": False, "steps": steps, "stopped": why})
            return {"over": True, "seconds": self.spent, "run": run.model_dump()}
        return known


def test_a_plan_is_trained_no_further_than_a_baseline_whose_time_was_up() -> None:
    machine = Machine()
    one, other = Endless(machine, 0, 40.0), Endless(machine, 1, 40.0)
    before, after = Turns((one, other), {"max_seconds": 40.0}, seconds=40.0, speedup=2.0).run(first=0)
    assert (before.stopped, after.stopped) == ("seconds", "steps")
    assert before.steps < after.steps <= 1.35 * before.steps
    assert after.seconds < 0.75 * before.seconds


def test_a_real_training_goes_no_further_than_it_is_told() -> None:
    run = RunUnderWay(breakers_trial(Registry([])), max_seconds=60.0, target=2.0)
    assert not run.go_on(0.02)
    step = run.training.steps + 3
    run.go_no_further(step, step - 1)
    assert run.go_on()
    found = run.document()
    assert (found.steps, found.stopped) == (step, "steps")
    assert [point.step for point in found.curve.points][-2:] == [step - 1, step], (
        "where the other was evaluated at its end"
    )


def test_one_that_fails_says_which() -> None:
    machine = Machine()
    processes = (FakeProcess(machine, 0, 5.0), FakeProcess(machine, 1, 5.0, fails=True))
    with pytest.raises(TrialFailed) as raised:
        Turns(processes, {"max_seconds": 10.0}, seconds=5.0).run(first=0)
    assert raised.value.side == 1


@pytest.mark.parametrize(
    ("pairs", "scatter", "least"),
    [(2, 0.03, 0.93), (2, 0.08, 0.93), (2, 0.12, 0.93), (2, 0.15, 0.9), (3, 0.15, 0.9), (5, 0.03, 0.9), (5, 0.15, 0.9)],
)
def test_the_ratio_of_a_few_pairs_covers_the_truth(pairs: int, scatter: float, least: float) -> None:
    rng = np.random.default_rng(0)
    drawn = [ratio_of_pairs(list(log(1.5) + scatter * rng.standard_normal(pairs)), 0.02) for _ in range(600)]
    assert np.mean([one.low <= 1.5 <= one.high for one in drawn]) >= least


def test_the_next_session_is_predicted_with_more_than_the_error_of_the_mean() -> None:
    mean, following = ratio_of_pairs([0.3, 0.4]), next_session([0.3, 0.4])
    assert following.value == mean.value
    assert following.low < mean.low
    assert mean.high < following.high


def test_legs_of_a_real_training_are_the_training() -> None:
    whole = RunUnderWay(breakers_trial(Registry([])), max_seconds=60.0, confirm=1)
    assert whole.go_on()
    legs, count = RunUnderWay(breakers_trial(Registry([])), max_seconds=60.0, confirm=1), 0
    while not legs.go_on(0.02):
        count += 1
    assert count >= 1
    one, other = whole.document(), legs.document()
    assert one.losses == other.losses
    assert [point.metric for point in one.curve.points] == [point.metric for point in other.curve.points]
    assert one.curve.points[-1].metric >= 0.82 <= one.curve.points[-2].metric, "a second evaluation confirms the target"


@pytest.mark.parametrize(("lengths", "pairs"), [((1, 2, 3), 2), ((1, 2, 3), 4), ((2, 3, 4), 3), ((5, 6, 7), 2)])
def test_a_run_that_ends_by_its_result_is_of_another_length_from_another_seed(
    lengths: tuple[int, ...], pairs: int
) -> None:
    """A start of 2 s that stays, and evaluations of which the plan makes a sixth: seeds decide how many."""
    rng = np.random.default_rng(1)

    def pair(evaluations: int) -> TrainedPair:
        seconds = [(2.0 + each * evaluations) * exp(rng.normal(0.0, 0.015)) for each in (7.5, 1.2)]
        runs = [WholeRun(one, (0.5,) * evaluations).as_training(0, 0, every=20) for one in seconds]
        return TrainedPair(baseline=runs[0], best=runs[1], whole=True, time_sliced=True)

    truth = fmean(log((2.0 + 7.5 * count) / (2.0 + 1.2 * count)) for count in lengths)
    run = RunParts(imports_seconds=2.0, ends_by_result=True)
    held = 0
    for _ in range(200):
        found = [pair(int(rng.choice(lengths))) for _ in range(pairs)]
        ratios = [each.log_ratio for each in found]
        ratio = ratio_of_pairs(ratios, time_sliced=True, length=length_scatter(found, run))
        held += log(ratio.low) <= truth <= log(ratio.high)
    assert held >= 0.88 * 200
    assert length_scatter(found, run.model_copy(update={"ends_by_result": False})) == 0.0
