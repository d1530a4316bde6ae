"""The verdict on a candidate: throughput first, then quality by risk class, then time to target.

* ``exact``: same losses to rounding over the probe (on average where samples themselves are random,
  and then the metric as well).
* ``numeric``: finite, the loss path within tolerance, the metric not inferior given its seed noise.
* ``training``, ``model``: trained to the target from two seeds or more; time to target decides.

What was not captured fails: a gate that saw nothing has not been passed.
"""

from __future__ import annotations

from autoopt.records import Noise, Objective, Quality, Verdict
from autoopt.search.accept.evidence import Evidence, Judgement, RequiredRuns
from autoopt.search.accept.loss_paths import (
    common,
    first_not_finite,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
)
from autoopt.search.accept.memory_margin import lost_margin
from autoopt.search.accept.quality import fewer_evaluated, metric_difference, metric_quality, with_seed_noise
from autoopt.search.accept.time_to_target import same_steps_ratio
from autoopt.search.accept.trained import FEWEST_SEEDS, MOST_SEEDS, both_figures, judge_trained, missed_target
from autoopt.search.compare.comparison import Comparison, Decision, LossPath
from autoopt.strategy import Risk

MOST_METRIC_SEEDS = 3
"""Seeds of an ``exact`` or ``numeric`` change while its metric is undecided."""

NOT_TESTED = Quality(method="not_tested")

_SPEED = {
    Decision.REJECT: Verdict.NO_GAIN,
    Decision.HARMFUL: Verdict.HARMFUL,
    Decision.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}


def judge(risk: Risk, comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise) -> Judgement:
    """The verdict from what there is; gather what :func:`required_runs` asks for first.

    Args:
        risk: the class of the candidate's riskiest change.
        comparison: candidate against incumbent.
        evidence: trainings and facts.
        objective: metric, target, tolerance, and the gain worth having.
        noise: with the seed noise of the metric, where it was measured.
    """
    early = _before_quality(risk, comparison, evidence)
    if early:
        return early
    noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    if risk in (Risk.TRAINING, Risk.MODEL):
        return judge_trained(comparison, evidence, objective)
    quality = _paths(risk, comparison, evidence)
    if quality.passed and _metric_wanted(risk, evidence, objective):
        quality = _with_metric(risk, quality, evidence, objective, noise)
    if quality.passed is not True:
        verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        return Judgement(verdict=verdict, reason=quality.detail, quality=quality)
    return _timed(comparison, evidence, objective, quality)


def required_runs(
    risk: Risk, comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise
) -> RequiredRuns:
    """The trainings that :func:`judge` still wants; false when it has all that it would use."""
    if _before_quality(risk, comparison, evidence):
        return RequiredRuns()
    noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    have = len(evidence.paired_with_incumbent())
    if risk in (Risk.TRAINING, Risk.MODEL):
        if have < FEWEST_SEEDS:
            return RequiredRuns(
                baseline_seeds=FEWEST_SEEDS,
                candidate_seeds=FEWEST_SEEDS,
                to_target=True,
                why=f"a change of class {risk.value} is trained to the target from {FEWEST_SEEDS} seeds",
            )
        undecided = judge_trained(comparison, evidence, objective).verdict is Verdict.INCONCLUSIVE
        more = have + 1 if undecided and have < MOST_SEEDS else 0
        return RequiredRuns(
            baseline_seeds=more, candidate_seeds=more, to_target=bool(more), why="time to target is undecided"
        )
    if _paths(risk, comparison, evidence).passed is not True or not _metric_wanted(risk, evidence, objective):
        return RequiredRuns()
    exact = risk is Risk.EXACT  # its losses are compared step by step: one training to the target will do
    seeds_of_baseline = max(2, len(evidence.baseline_runs)) if noise.seed_noise is None and not exact else 1
    if have == 0:
        return RequiredRuns(
            baseline_seeds=seeds_of_baseline, candidate_seeds=1, to_target=True, why="the metric is not known yet"
        )
    difference = None if exact else metric_difference(evidence.paired_with_incumbent(), objective, noise)
    if difference is None or difference.proved or difference.lost or have >= MOST_METRIC_SEEDS:
        return RequiredRuns()
    with_all = difference.error * (have / MOST_METRIC_SEEDS) ** 0.5
    if difference.passed and (difference.error <= difference.margin or with_all > difference.margin):
        return RequiredRuns()  # further seeds would not prove more than that nothing speaks against it
    return RequiredRuns(
        baseline_seeds=have + 1, candidate_seeds=have + 1, to_target=True, why="the metric's noise hides the tolerance"
    )


def _before_quality(risk: Risk, comparison: Comparison, evidence: Evidence) -> Judgement | None:
    """A judgement that needs no look at quality: failures, throughput, losses that are missing or not finite."""
    failure = comparison.failure or evidence.failure
    if failure:
        verdict = Verdict.FAILED if failure.side == "candidate" else Verdict.INCONCLUSIVE
        reason = failure.reason if verdict is Verdict.FAILED else f"the incumbent failed beside it: {failure.reason}"
        return Judgement(verdict=verdict, reason=reason, quality=NOT_TESTED)
    if comparison.decision is not Decision.ACCEPT and not _trained_anyway(risk, comparison):
        return Judgement(verdict=_SPEED[comparison.decision], reason=comparison.reason, quality=NOT_TESTED)
    return _missing(comparison, evidence) or _near_limit(comparison, evidence) or _fewer_evaluated(comparison)


def _fewer_evaluated(comparison: Comparison) -> Judgement | None:
    """A refusal, whatever the class, where an evaluation looks at fewer samples than the incumbent's."""
    before, after = comparison.incumbent.evaluated_samples, comparison.candidate.evaluated_samples
    if before is None or after is None or after >= before:
        return None
    detail = f"evaluated on {after} samples where the incumbent was evaluated on {before}"
    quality = Quality(method="metric", passed=False, detail=detail)
    return Judgement(verdict=Verdict.QUALITY_LOST, reason=detail, quality=quality)


def _near_limit(comparison: Comparison, evidence: Evidence) -> Judgement | None:
    """A refusal where the candidate leaves too little memory free: it would end in the middle of a real run."""
    reason = lost_margin(
        comparison.incumbent, comparison.candidate, evidence.memory_limit_bytes, evidence.candidate_runs
    )
    if not reason:
        return None
    return Judgement(verdict=Verdict.HARMFUL, reason=f"memory: {reason} ({comparison.reason})", quality=NOT_TESTED)


def _trained_anyway(risk: Risk, comparison: Comparison) -> bool:
    """Whether a change that is not proved faster per sample may still reach the target sooner.

    One that leaves the batch alone may (a schedule); another batch that brings no throughput is not worth
    its trainings.
    """
    if risk not in (Risk.TRAINING, Risk.MODEL) or comparison.decision is Decision.HARMFUL:
        return False
    return comparison.incumbent.samples_per_step == comparison.candidate.samples_per_step


def _missing(comparison: Comparison, evidence: Evidence) -> Judgement | None:
    """A failure where no loss was captured, or one is not finite that the incumbent's is."""
    path = comparison.candidate.losses
    if not path.losses:
        reason = "error: no loss was captured, so quality cannot be judged"
        return Judgement(verdict=Verdict.FAILED, reason=reason, quality=Quality(method="not_tested", passed=False))
    bad, before = first_not_finite(path), first_not_finite(comparison.incumbent.losses)
    if bad is not None and before is not None and before <= bad:
        bad = None  # the incumbent does so too: the workload's own way (a loss scaler that skips a step)
    where = f"the loss of step {bad}" if bad is not None else None
    for run in evidence.candidate_runs:
        if not run.finite or any(loss is None for loss in run.losses):
            where = where or f"a loss in training from seed {run.seed}"
    if where is None:
        return None
    quality = Quality(method="loss_path", passed=False, detail=f"{where} is not finite")
    return Judgement(verdict=Verdict.FAILED, reason=f"not_finite: {where}", quality=quality)


def judge_runs(evidence: Evidence, objective: Objective, noise: Noise) -> Quality:
    """Quality of the final plan's trainings against the baseline's, for verification from end to end.

    ``passed`` is False for a loss that is not finite, fewer evaluated samples, a target missed from a
    seed from which the baseline reaches it, or a metric that is certainly worse; None where it cannot be told.
    """
    pairs = evidence.paired()
    for run in evidence.candidate_runs:
        if not run.finite or any(loss is None for loss in run.losses):
            return Quality(method="metric", passed=False, detail=f"a loss from seed {run.seed} is not finite")
        if not run.losses:
            return Quality(method="not_tested", passed=False, detail=f"no loss was captured from seed {run.seed}")
    fewer = fewer_evaluated(pairs)
    missed = missed_target(pairs, objective)
    if fewer or missed:
        return Quality(method="metric", passed=False, metric=objective.metric, seeds=len(pairs), detail=fewer or missed)
    difference = metric_difference(pairs, objective, with_seed_noise(noise, evidence.baseline_runs, objective))
    if difference is None:
        what = objective.metric or "no metric"
        return Quality(method="not_tested", metric=objective.metric, detail=f"{what}: not measured on both sides")
    return metric_quality(difference, objective)


def _paths(risk: Risk, comparison: Comparison, evidence: Evidence) -> Quality:
    """Loss paths of candidate and incumbent over the probe."""
    before, after = comparison.incumbent, comparison.candidate
    paths = common(before.losses, after.losses)
    if paths is None:
        return Quality(
            method="not_tested", passed=False, detail="too few losses in common to tell whether training is the same"
        )
    again = common(before.losses, before.losses_again)
    if evidence.deterministic is False:
        quality = same_on_average(paths, again)
    elif risk is Risk.EXACT:
        quality = same_to_rounding(paths, evidence.epsilon, again)
    else:
        quality = same_within_tolerance(paths)
    if quality.passed:
        return _whole_runs(quality, evidence)
    return quality


def _whole_runs(quality: Quality, evidence: Evidence) -> Quality:
    """The losses of whole trainings, seed by seed: what a probe is too short to show."""
    for before, after in evidence.paired_with_incumbent():
        paths = common(_path(before.losses), _path(after.losses))
        if paths is None:
            continue
        whole = same_on_average(paths)
        if whole.passed is False:
            detail = f"in training from seed {after.seed}: {whole.detail}"
            return whole.model_copy(update={"method": "loss_path", "detail": detail})
    return quality


def _path(losses: tuple[float | None, ...]) -> LossPath:
    return LossPath(steps=tuple(range(len(losses))), losses=losses)


def _metric_wanted(risk: Risk, evidence: Evidence, objective: Objective) -> bool:
    """Whether the class asks for the metric; without a metric the loss path is all there is."""
    return objective.metric is not None and (risk is Risk.NUMERIC or evidence.deterministic is False)


def _with_metric(risk: Risk, paths: Quality, evidence: Evidence, objective: Objective, noise: Noise) -> Quality:
    """The metric on top of passed loss paths.

    A change of class ``exact`` whose losses are the same on average, in the same order of samples, is
    refused by the metric only where that is certainly worse: its seed noise alone is no evidence.
    Where there is no time to train, the loss path decides for now and the verification for good.
    """
    pairs = evidence.paired_with_incumbent()
    fewer = fewer_evaluated(pairs)
    if fewer:
        return Quality(method="metric", passed=False, metric=objective.metric, detail=fewer)
    difference = metric_difference(pairs, objective, noise)
    if difference is None and (risk is Risk.EXACT or evidence.verified_later):
        detail = f"{paths.detail}; no time to measure {objective.metric} here, the verification trains to it"
        return paths.model_copy(update={"detail": detail})
    if difference is None:
        return Quality(
            method="not_tested", passed=None, metric=objective.metric, detail=f"{objective.metric} was not measured"
        )
    quality = metric_quality(difference, objective)
    undecided = quality.passed is None and risk is Risk.EXACT
    return quality.model_copy(
        update={
            "passed": True if undecided else quality.passed,
            "detail": f"{paths.detail}; {quality.detail}",
            "largest_loss_difference": paths.largest_loss_difference,
            "steps": paths.steps,
        }
    )


def _timed(comparison: Comparison, evidence: Evidence, objective: Objective, quality: Quality) -> Judgement:
    """Time to target of a change that is faster and as good: what it costs once must pay off too."""
    ratio = same_steps_ratio(comparison, evidence, objective)
    if ratio is not None and ratio.value < 1 + objective.min_gain:
        reason = both_figures("its fixed cost does not pay in the planned run", comparison, ratio)
        return Judgement(verdict=Verdict.NO_GAIN, reason=reason, quality=quality, time_to_target=ratio)
    reason = f"{comparison.reason}; {quality.detail}"
    return Judgement(verdict=Verdict.KEPT, reason=reason, quality=quality, time_to_target=ratio)
