"""Verdicts by risk class on made-up evidence."""

from __future__ import annotations

import pytest

from autoopt.records import Estimate, Noise, Quality, Verdict
from autoopt.search.accept.evidence import Evidence, RequiredRuns, TrainedPair
from autoopt.search.accept.gate import judge_runs
from autoopt.search.accept.time_to_target import same_steps_ratio
from autoopt.search.compare.comparison import Decision, Side, SideFailure
from autoopt.strategy import Risk
from made_up import DOUBT, NOISE, OBJECTIVE, SAME, comparison, evidence, judge_as, losses, required_as, run

SMALL = comparison(speed=1.03)
"""A gain that steps to the target could never show to be paid for."""


@pytest.mark.parametrize("risk", list(Risk))
@pytest.mark.parametrize(("side_name", "verdict"), [("candidate", Verdict.FAILED), ("incumbent", Verdict.INCONCLUSIVE)])
def test_a_failure_is_the_verdict_of_its_side(risk, side_name, verdict) -> None:
    failure = SideFailure(side=side_name, kind="out_of_memory", message="139 GiB wanted")
    found = judge_as(risk, comparison(decision=Decision.FAILED, failure=failure), evidence(), OBJECTIVE, NOISE)
    assert found.verdict is verdict
    assert "out_of_memory: 139 GiB wanted" in found.reason
    assert found.quality.method == "not_tested"


@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.NUMERIC])
@pytest.mark.parametrize(
    ("decision", "verdict"),
    [
        (Decision.REJECT, Verdict.NO_GAIN),
        (Decision.HARMFUL, Verdict.HARMFUL),
        (Decision.INCONCLUSIVE, Verdict.INCONCLUSIVE),
    ],
)
def test_what_is_not_faster_is_not_trained(risk, decision, verdict) -> None:
    found = comparison(decision=decision)
    assert judge_as(risk, found, evidence(), OBJECTIVE, NOISE).verdict is verdict
    assert not required_as(risk, found, evidence(), OBJECTIVE, NOISE)


@pytest.mark.parametrize("risk", list(Risk))
def test_no_loss_captured_is_never_a_pass(risk) -> None:
    found = judge_as(risk, comparison(after=()), evidence((run(0), run(1))), OBJECTIVE, NOISE)
    assert found.verdict is Verdict.FAILED
    assert "no loss was captured" in found.reason


@pytest.mark.parametrize("risk", list(Risk))
def test_a_loss_that_is_not_finite_fails(risk) -> None:
    path = (*losses()[:40], None, *losses()[41:])
    found = judge_as(risk, comparison(after=path), evidence((run(0), run(1))), OBJECTIVE, NOISE)
    assert found.verdict is Verdict.FAILED
    assert found.reason == "not_finite: the loss of step 40"


def test_a_late_nan_in_training_fails() -> None:
    late = run(0, losses=(*losses(0, 99), None), finite=False)
    found = judge_as(Risk.NUMERIC, comparison(), evidence((late,)), OBJECTIVE, NOISE)
    assert found.verdict is Verdict.FAILED
    assert found.reason.startswith("not_finite:")


def test_what_the_incumbent_does_too_is_not_the_candidates_fault() -> None:
    path = (*losses()[:40], None, *losses()[41:])
    assert judge_as(Risk.EXACT, comparison(path, path), evidence(), OBJECTIVE, NOISE).verdict is Verdict.KEPT


def test_exact_needs_no_training() -> None:
    found = comparison(after=losses(jitter=1e-7))
    assert not required_as(Risk.EXACT, found, evidence(), OBJECTIVE, NOISE)
    judged = judge_as(Risk.EXACT, found, evidence(), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.KEPT
    assert judged.quality.level == "identical"
    assert judged.time_to_target.value > 1.1


def test_exact_with_another_order_of_samples_is_lost() -> None:
    found = judge_as(Risk.EXACT, comparison(after=losses(seed=1)), evidence(), OBJECTIVE, NOISE)
    assert found.verdict is Verdict.QUALITY_LOST
    assert "differ from step 0 on" in found.reason


def test_exact_that_rounds_differently_is_lost() -> None:
    found = judge_as(Risk.EXACT, comparison(after=losses(jitter=0.01)), evidence(), OBJECTIVE, NOISE)
    assert found.verdict is Verdict.QUALITY_LOST


def test_exact_on_an_incumbent_in_bf16_may_round_as_bf16() -> None:
    found = comparison(after=losses(jitter=0.003))
    assert judge_as(Risk.EXACT, found, evidence(epsilon=2.0**-8), OBJECTIVE, NOISE).verdict is Verdict.KEPT


def test_exact_with_random_augmentation_is_judged_on_average() -> None:
    found, some = comparison(after=losses(seed=1)), evidence(deterministic=False)
    assert not required_as(Risk.EXACT, found, some, OBJECTIVE, NOISE)
    assert judge_as(Risk.EXACT, found, some, OBJECTIVE, NOISE).verdict is Verdict.KEPT
    slow = judge_as(Risk.EXACT, comparison(after=losses(seed=1, slow=2.0)), some, OBJECTIVE, NOISE)
    assert slow.verdict is Verdict.QUALITY_LOST


def test_too_few_losses_in_common_are_no_pass() -> None:
    found = judge_as(Risk.EXACT, comparison(after=losses()[:4]), evidence(), OBJECTIVE, NOISE)
    assert found.verdict is Verdict.QUALITY_LOST
    assert found.quality.passed is False


@pytest.mark.parametrize("level", ["identical", "equivalent"])
def test_numeric_with_a_level_is_kept_without_a_training(level: str) -> None:
    found = comparison(after=losses(jitter=0.004))
    some = evidence(level=SAME.model_copy(update={"level": level}))
    assert not required_as(Risk.NUMERIC, found, some, OBJECTIVE, NOISE)
    judged = judge_as(Risk.NUMERIC, found, some, OBJECTIVE, NOISE)
    assert (judged.verdict, judged.quality.level) == (Verdict.KEPT, level)


@pytest.mark.parametrize("risk", [Risk.EXACT, Risk.NUMERIC])
def test_a_probe_that_shows_another_training_is_quality_lost(risk) -> None:
    other = SAME.model_copy(update={"level": None, "passed": False, "detail": "w is not updated in step 9"})
    judged = judge_as(risk, comparison(), evidence(level=other), OBJECTIVE, NOISE)
    assert (judged.verdict, judged.reason) == (Verdict.QUALITY_LOST, judged.quality.detail)
    assert "not updated in step 9" in judged.reason


def test_numeric_that_its_probe_does_not_tell_is_trained_from_two_seeds_and_kept_where_that_proves_it() -> None:
    found, quiet = comparison(after=losses(jitter=0.004)), Noise(seed_noise=0.0005)
    assert required_as(Risk.NUMERIC, found, evidence(level=DOUBT), OBJECTIVE, quiet).seeds == 2
    assert judge_as(Risk.NUMERIC, found, evidence(level=DOUBT), OBJECTIVE, quiet).verdict is Verdict.INCONCLUSIVE
    judged = judge_as(Risk.NUMERIC, found, evidence((run(0), run(1)), level=DOUBT), OBJECTIVE, quiet)
    assert (judged.verdict, judged.quality.level) == (Verdict.KEPT, "trained"), judged.reason
    assert judged.quality.difference.value == pytest.approx(0, abs=1e-9)
    assert judged.quality.margin == pytest.approx(0.0045)


def test_one_seed_gives_no_verdict_on_the_metric() -> None:
    worse = evidence((run(0, to=None, best=0.5),), level=DOUBT)
    low = OBJECTIVE.model_copy(update={"target": 0.4})
    judged = judge_as(Risk.NUMERIC, comparison(), worse, low, Noise(seed_noise=1e-6))
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason.startswith("quality undecided: observed accuracy")


def test_a_target_that_the_paired_baseline_reaches_is_lost_from_one_seed_on() -> None:
    missed = evidence((run(0, to=None, best=0.5),), level=DOUBT)
    for risk in (Risk.NUMERIC, Risk.TRAINING):
        judged = judge_as(risk, comparison(), missed, OBJECTIVE, NOISE)
        assert judged.verdict is Verdict.QUALITY_LOST
        assert judged.quality.passed is False
        assert "accuracy 0.9 not reached in 220 steps" in judged.reason


def test_numeric_that_learns_slower_is_lost_without_any_training() -> None:
    found = comparison(after=losses(slow=1.6))
    assert not required_as(Risk.NUMERIC, found, evidence(), OBJECTIVE, NOISE)
    judged = judge_as(Risk.NUMERIC, found, evidence(), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.QUALITY_LOST
    assert "higher" in judged.reason


def test_numeric_whose_loss_is_lower_from_the_first_step_is_lost() -> None:
    easy = tuple(0.5 * loss for loss in losses())
    judged = judge_as(Risk.NUMERIC, comparison(after=easy), evidence((run(0),)), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.QUALITY_LOST
    assert "another loss is computed" in judged.reason


def test_numeric_with_a_worse_metric_is_lost() -> None:
    worse = tuple(run(seed, to=None, best=0.85) for seed in range(3))
    judged = judge_as(Risk.NUMERIC, comparison(), evidence(worse, level=DOUBT), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.QUALITY_LOST
    assert judged.quality.difference.high < 0


def test_what_one_seed_shows_of_the_noise_says_how_many_would_prove_it() -> None:
    """A second pair of trainings tells nothing where evaluations scatter by more than the tolerance."""

    def asked(scatter: float) -> RequiredRuns:
        some = evidence((run(0),), baseline=(run(0),), level=DOUBT)
        return required_as(Risk.NUMERIC, SMALL, some, OBJECTIVE, Noise(seed_noise=scatter))

    assert (asked(0.0005).seeds, asked(0.0005).planned) == (2, 2)
    assert (asked(0.0015).seeds, asked(0.0015).planned) == (2, 3)
    assert not asked(0.01)


def test_a_metric_noisier_than_the_tolerance_is_undecided_and_asks_for_no_more_than_could_prove_it() -> None:
    some = evidence((run(0), run(1)), level=DOUBT)
    assert required_as(Risk.NUMERIC, SMALL, some, OBJECTIVE, Noise(seed_noise=0.001)).seeds in (0, 3)
    noisy = Noise(seed_noise=0.05)
    assert not required_as(Risk.NUMERIC, SMALL, some, OBJECTIVE, noisy)
    judged = judge_as(Risk.NUMERIC, SMALL, some, OBJECTIVE, noisy)
    assert (judged.verdict, judged.quality.level) == (Verdict.INCONCLUSIVE, "undecided")
    assert judged.quality.difference is not None
    taken = judge_as(Risk.NUMERIC, SMALL, some.model_copy(update={"accept_undecided": True}), OBJECTIVE, noisy)
    assert (taken.verdict, taken.quality.level) == (Verdict.KEPT, "undecided")


def reaching(*to: float) -> Evidence:
    return evidence(tuple(run(seed, to=steps) for seed, steps in enumerate(to)), level=DOUBT)


def test_a_metric_too_noisy_to_tell_leaves_it_to_the_steps_to_the_target_which_are_charged() -> None:
    noisy, fast = Noise(seed_noise=0.05), comparison(speed=1.8)
    first = required_as(Risk.NUMERIC, fast, reaching(), OBJECTIVE, noisy)
    assert (first.seeds, first.planned) == (2, 2)
    judged = judge_as(Risk.NUMERIC, fast, reaching(108.0, 104.0), OBJECTIVE, noisy)
    assert (judged.verdict, judged.quality.level) == (Verdict.KEPT, "trained"), judged.reason
    assert judged.quality.step_penalty is not None
    assert judged.quality.step_penalty.value == pytest.approx(1.1, abs=0.05)
    assert "would have been refused with 80 %" in judged.reason
    assert "times the steps" in judged.quality.would_miss
    slower = judge_as(Risk.NUMERIC, fast, reaching(170.0, 190.0), OBJECTIVE, noisy)
    assert (slower.verdict, slower.quality.level) == (Verdict.INCONCLUSIVE, "undecided"), slower.reason
    assert "where the speedup pays for" in slower.reason


def test_seeds_are_planned_by_how_far_the_baselines_own_trainings_scatter() -> None:
    """Steps to the target that scatter by a third between seeds would take more of them than there may be."""
    noisy = Noise(seed_noise=0.05)
    calm, wild = ((100.0, 100.0, 100.0), (60.0, 100.0, 160.0))
    asked = [
        required_as(
            Risk.NUMERIC,
            comparison(speed=speed),
            evidence(baseline=tuple(run(seed, to=to) for seed, to in enumerate(steps)), level=DOUBT),
            OBJECTIVE,
            noisy,
        )
        for steps, speed in ((calm, 1.8), (calm, 1.25), (calm, 1.05), (wild, 1.25))
    ]
    assert asked[0].planned == 2
    assert asked[1].planned in (3, 4)
    assert not asked[2]
    assert not asked[3]


def test_without_a_metric_the_probe_decides() -> None:
    objective = OBJECTIVE.model_copy(update={"metric": None, "target": None})
    judged = judge_as(Risk.NUMERIC, comparison(), evidence(planned_steps=1000), objective, NOISE)
    assert (judged.verdict, judged.quality.level) == (Verdict.KEPT, "identical")
    doubtful = judge_as(Risk.NUMERIC, comparison(), evidence(planned_steps=1000, level=DOUBT), objective, NOISE)
    assert doubtful.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("risk", [Risk.NUMERIC, Risk.TRAINING])
def test_fewer_evaluated_samples_are_quality_lost(risk) -> None:
    few = (run(0, evaluated=100), run(1, evaluated=100))
    judged = judge_as(risk, comparison(), evidence(few, level=DOUBT), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.QUALITY_LOST
    assert "evaluated on 100 samples where the baseline was evaluated on 500" in judged.reason


@pytest.mark.parametrize("risk", list(Risk))
def test_fewer_evaluated_samples_are_seen_before_anything_is_trained(risk) -> None:
    counted = comparison()
    counted = counted.model_copy(
        update={
            "incumbent": counted.incumbent.model_copy(update={"evaluated_samples": 500}),
            "candidate": counted.candidate.model_copy(update={"evaluated_samples": 100}),
        }
    )
    assert not required_as(risk, counted, Evidence(deterministic=True), OBJECTIVE, NOISE)
    judged = judge_as(risk, counted, Evidence(deterministic=True), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.QUALITY_LOST
    assert "evaluated on 100 samples where the incumbent was evaluated on 500" in judged.reason
    assert judged.quality.passed is False


def test_a_fixed_cost_that_does_not_pay_is_no_gain_with_both_figures() -> None:
    judged = judge_as(Risk.EXACT, comparison(fixed=60.0), evidence(), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.NO_GAIN
    assert "throughput 1.50x" in judged.reason
    assert "time to target 0." in judged.reason


def test_the_same_fixed_cost_pays_in_a_long_plan() -> None:
    own = OBJECTIVE.model_copy(update={"target_source": "baseline"})
    judged = judge_as(Risk.EXACT, comparison(fixed=60.0), evidence(planned_steps=1_000_000), own, NOISE)
    assert judged.verdict is Verdict.KEPT
    with_evaluation = (20 * 0.01 + 0.1) / (20 * 0.01 / 1.5 + 0.1)
    assert judged.time_to_target.value == pytest.approx(with_evaluation, rel=0.02)


@pytest.mark.parametrize("risk", [Risk.TRAINING, Risk.MODEL])
def test_training_wants_two_seeds_to_the_target(risk) -> None:
    wanted = required_as(risk, comparison(), evidence((run(0, to=50.0),)), OBJECTIVE, NOISE)
    assert wanted.seeds == 2
    judged = judge_as(risk, comparison(), evidence((run(0, to=50.0),)), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("beside", [True, False])
def test_evaluations_of_a_plan_trained_in_turns_have_their_own_seconds(beside: bool) -> None:
    """Under autocast an evaluation takes as much less as a step: at the baseline's seconds the plan was told slower."""
    before, after = run(0, evaluation_seconds=4.0, evaluations=5), run(0, evaluation_seconds=2.0, evaluations=5)
    pair = TrainedPair(baseline=before, best=after, interleaved=beside)
    found = same_steps_ratio(comparison(speed=2.0), evidence(baseline=(before,), in_turns=(pair,)), OBJECTIVE)
    known = same_steps_ratio(comparison(speed=2.0), evidence(baseline=(before,)), OBJECTIVE)
    assert found is not None
    assert known is not None
    # of 1 s paid once, 100 steps of 10 ms and 5 evaluations of 0.8 s
    assert known.value == pytest.approx(6.0 / 5.5, rel=0.02)
    assert found.value == pytest.approx(6.0 / 3.5 if beside else 6.0 / 5.5, rel=0.02)


def test_training_that_raises_throughput_and_lengthens_time_to_target_is_rejected_with_both_figures() -> None:
    slow = tuple(run(seed, to=200.0) for seed in range(3))
    judged = judge_as(Risk.TRAINING, comparison(speed=1.3), evidence(slow), OBJECTIVE, NOISE)
    assert judged.verdict in (Verdict.NO_GAIN, Verdict.HARMFUL)
    assert "throughput 1.30x" in judged.reason
    assert "time to target is longer" in judged.reason
    assert judged.time_to_target.value < 1.0


def test_training_that_reaches_the_target_sooner_is_kept() -> None:
    quick = tuple(run(seed, to=60.0) for seed in range(3))
    judged = judge_as(Risk.TRAINING, comparison(speed=1.5), evidence(quick), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.KEPT, judged.reason
    assert judged.quality.seeds == 3


def test_trainings_in_turns_tell_the_time_to_target_by_their_own_seconds() -> None:
    """Half the steps at half the seconds of a step; the comparison, of few pairs, says next to nothing."""
    slow = comparison(decision=Decision.INCONCLUSIVE, speed=1.0).model_copy(
        update={"estimate": Estimate(value=1.0, low=0.6, high=1.7, n=1)}
    )
    before = tuple(run(seed, fixed_seconds=0.0) for seed in range(4))
    after = tuple(run(seed, to=50.0, fixed_seconds=0.0) for seed in range(4))
    after = tuple(one.model_copy(update={"training_seconds": one.training_seconds / 2}) for one in after)
    beside = tuple(TrainedPair(baseline=old, best=new) for old, new in zip(before, after, strict=True))
    alone = judge_as(Risk.TRAINING, slow, evidence(after, before), OBJECTIVE, NOISE)
    judged = judge_as(Risk.TRAINING, slow, evidence(after, before, in_turns=beside), OBJECTIVE, NOISE)
    assert alone.verdict is Verdict.INCONCLUSIVE
    assert judged.verdict is Verdict.KEPT
    assert alone.time_to_target is not None
    assert judged.time_to_target is not None
    assert judged.time_to_target.value > 1.3 * alone.time_to_target.value


def test_training_that_misses_the_target_is_quality_lost() -> None:
    never = (run(0, to=60.0), run(1, to=None, best=0.8))
    judged = judge_as(Risk.TRAINING, comparison(speed=3.0), evidence(never), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.QUALITY_LOST
    assert "not reached" in judged.reason
    assert judged.time_to_target is None


def test_a_schedule_that_is_no_faster_per_sample_is_trained_all_the_same() -> None:
    found = comparison(decision=Decision.REJECT, speed=1.0)
    assert required_as(Risk.TRAINING, found, evidence(), OBJECTIVE, NOISE)
    quick = tuple(run(seed, to=50.0) for seed in range(3))
    assert judge_as(Risk.TRAINING, found, evidence(quick), OBJECTIVE, NOISE).verdict is Verdict.KEPT


def test_blocks_with_more_of_an_epochs_small_last_batch_are_no_other_batch() -> None:
    found = comparison(decision=Decision.INCONCLUSIVE, speed=1.0, samples=9.7)
    assert required_as(Risk.MODEL, found, evidence(), OBJECTIVE, NOISE)


@pytest.mark.parametrize("risk", [Risk.TRAINING, Risk.MODEL])
def test_what_goes_on_from_an_earlier_trial_without_another_pair_has_not_failed(risk) -> None:
    found = comparison(decision=Decision.INCONCLUSIVE).model_copy(update={"incumbent": Side(), "candidate": Side()})
    assert not required_as(risk, found, evidence(), OBJECTIVE, NOISE)
    judged = judge_as(risk, found, evidence(), OBJECTIVE, NOISE)
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.reason == found.reason


def test_another_batch_without_throughput_is_not_trained() -> None:
    found = comparison(decision=Decision.REJECT, speed=1.0, samples=40.0)
    assert not required_as(Risk.TRAINING, found, evidence(), OBJECTIVE, NOISE)
    assert judge_as(Risk.TRAINING, found, evidence(), OBJECTIVE, NOISE).verdict is Verdict.NO_GAIN


def test_training_is_timed_against_the_incumbent_and_measured_for_quality_against_the_baseline() -> None:
    quick, incumbent = tuple(run(s, to=60.0) for s in range(3)), tuple(run(s, to=50.0) for s in range(3))
    alone = judge_as(Risk.TRAINING, comparison(speed=1.02), evidence(quick), OBJECTIVE, NOISE)
    after = judge_as(Risk.TRAINING, comparison(speed=1.02), evidence(quick, incumbent_runs=incumbent), OBJECTIVE, NOISE)
    assert alone.time_to_target.value > 1.0 > after.time_to_target.value


def test_final_plan_is_judged_by_its_runs() -> None:
    good = judge_runs(evidence(tuple(run(s) for s in range(2))), OBJECTIVE, NOISE)
    assert (good.passed, good.level) == (True, "identical")
    unproven = judge_runs(evidence(tuple(run(s) for s in range(2)), level=None), OBJECTIVE, NOISE)
    assert (unproven.passed, unproven.level) == (None, "undecided")
    assert judge_runs(evidence((run(0, losses=(1.0, None), finite=False),)), OBJECTIVE, NOISE).passed is False
    assert judge_runs(evidence((run(0, losses=()),)), OBJECTIVE, NOISE).passed is False
    never = tuple(run(s, to=None, best=0.8) for s in range(2))
    assert judge_runs(evidence(never), OBJECTIVE, NOISE).passed is False
    assert judge_runs(evidence((run(0, evaluated=10),)), OBJECTIVE, NOISE).passed is False
    assert judge_runs(evidence(level=None), OBJECTIVE, NOISE).passed is None


def test_a_plan_that_takes_other_steps_is_verified_by_the_target_and_not_at_the_same_step() -> None:
    """More and shorter steps: behind at every step, and at the target all the same."""
    slow = tuple(run(s, to=160.0) for s in range(2))
    same_steps = judge_runs(evidence(slow, level=None), OBJECTIVE, NOISE)
    otherwise = judge_runs(evidence(slow, level=None, risk=Risk.TRAINING), OBJECTIVE, NOISE)
    assert same_steps.passed is False
    assert (otherwise.passed, otherwise.level, otherwise.seeds) == (True, "trained", 2)
    assert "accuracy 0.9 reached from 2 of 2 seeds" in otherwise.detail
    never = tuple(run(s, to=None, best=0.85) for s in range(2))
    assert judge_runs(evidence(never, level=None, risk=Risk.TRAINING), OBJECTIVE, NOISE).passed is False
    neither = judge_runs(evidence(never, baseline=never, level=None, risk=Risk.TRAINING), OBJECTIVE, NOISE)
    assert (neither.passed, neither.level) == (None, "undecided")


def test_an_undecided_time_to_target_asks_for_one_more_seed() -> None:
    two = evidence((run(0, to=90.0), run(1, to=210.0)))
    assert judge_as(Risk.TRAINING, comparison(), two, OBJECTIVE, NOISE).verdict is Verdict.INCONCLUSIVE
    wanted = required_as(Risk.TRAINING, comparison(), two, OBJECTIVE, NOISE)
    assert wanted.seeds == 3


def test_an_undecided_metric_within_reach_asks_for_one_more_seed() -> None:
    some = evidence((run(0), run(1)), level=DOUBT)
    wanted = required_as(Risk.NUMERIC, SMALL, some, OBJECTIVE, Noise(seed_noise=0.0025))
    assert wanted.seeds == 3


def test_losses_that_part_late_in_one_seed_decide_nothing_and_ask_for_a_second() -> None:
    """One training learns at its last third what the other learns a little later; rounding and draws do that."""

    def parted(seed: int, by: float) -> tuple[float, ...]:
        path = losses(seed)
        late = 2 * len(path) // 3
        return (*path[:late], *(value + by * path[0] for value in path[late:]))

    def judged(by: float, *seeds: int):
        runs = tuple(run(seed, losses=parted(seed, by)) for seed in seeds)
        known = evidence(runs, tuple(run(seed, losses=losses(seed)) for seed in seeds), level=SAME)
        return judge_as(Risk.NUMERIC, comparison(), known, OBJECTIVE, NOISE), required_as(
            Risk.NUMERIC, comparison(), known, OBJECTIVE, NOISE
        )

    one, wanted = judged(0.08, 0)
    assert one.verdict is Verdict.KEPT
    assert "which one seed does not decide" in one.reason
    assert wanted.seeds == 2
    both, _ = judged(0.08, 0, 1)
    assert both.verdict is Verdict.QUALITY_LOST
    gross, wanted = judged(0.5, 0)
    assert gross.verdict is Verdict.QUALITY_LOST
    assert not wanted


ROUNDED = Quality(method="probe", level="equivalent", passed=True, gradient_error=0.35, detail="but for rounding")


def priced(penalty: float, high: float | None = None) -> Quality:
    return ROUNDED.model_copy(update={"step_penalty": Estimate(value=penalty, low=1.0, high=high or penalty, n=32)})


@pytest.mark.parametrize(
    ("speed", "level", "verdict"),
    [
        (1.5, priced(1.12), Verdict.KEPT),
        (1.1, priced(1.12), Verdict.NO_GAIN),
        (1.1, priced(1.0001), Verdict.KEPT),
        (1.15, priced(1.1, 1.2), Verdict.INCONCLUSIVE),
        (1.1, SAME, Verdict.KEPT),
    ],
    ids=["worth its price", "eaten up", "as good as free", "not certain", "identical costs nothing"],
)
def test_an_unbiased_error_is_charged_as_steps(speed: float, level: Quality, verdict: Verdict) -> None:
    found = judge_as(Risk.NUMERIC, comparison(speed=speed), evidence(level=level), OBJECTIVE, NOISE)
    assert found.verdict is verdict, found.reason
    if verdict is not Verdict.KEPT:
        assert "more steps" in found.reason
        assert "1.1" in found.reason


def test_the_time_to_target_of_a_change_that_rounds_has_its_price() -> None:
    free, paid = (
        judge_as(Risk.NUMERIC, comparison(speed=1.5), evidence(level=level), OBJECTIVE, NOISE).time_to_target
        for level in (ROUNDED, priced(1.12))
    )
    assert free is not None
    assert paid is not None
    assert paid.value < free.value / 1.03, "the rest is evaluations and what is paid once"
