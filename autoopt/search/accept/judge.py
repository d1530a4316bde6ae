"""The verdict on a candidate: throughput first, then quality by risk class, then time to target.

* ``exact``, ``numeric``: every loss finite, the loss path as before, and by their probes the same training
  (``identical``), or the same but for rounding (``equivalent``); where probes do not tell, the metric of several seeds
  must be proven to be no worse than the tolerance (``trained``).
* ``training``, ``model``: trained to the target from two seeds or more; time to target decides (``trained``).

What was not captured fails: a gate that saw nothing has not been passed.
"""

from __future__ import annotations

from math import isclose

from autoopt.records import Noise, Objective, Quality, Verdict
from autoopt.search.accept.evidence import Evidence, Judgement, RequiredRuns
from autoopt.search.accept.late import fell_after_target
from autoopt.search.accept.loss_paths import (
    as_rounded,
    common,
    first_not_finite,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
)
from autoopt.search.accept.memory_margin import lost_margin
from autoopt.search.accept.quality import (
    FEWEST_SEEDS,
    MetricDifference,
    fewer_evaluated,
    fewest_seeds,
    metric_difference,
    metric_quality,
    with_seed_noise,
)
from autoopt.search.accept.time_to_target import same_steps
from autoopt.search.accept.trained import arrived, both_figures, judge_trained, missed_target, more_seeds_help
from autoopt.search.accept.whole_runs import GROSS, apart, judge_whole_runs, parted_late
from autoopt.search.compare.comparison import Comparison, Decision
from autoopt.strategy import Risk

MOST_METRIC_SEEDS = 4
"""Seeds of a change that its probe does not tell, while its metric is undecided."""

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
    early = before_quality(risk, comparison, evidence)
    if early:
        return early
    noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    if risk.trains_otherwise:
        return judge_trained(comparison, evidence, objective)
    quality = _leveled(_paths(risk, comparison, evidence), evidence, objective, noise)
    if quality.passed is None and evidence.accept_undecided:
        quality = quality.model_copy(update={"passed": True, "level": "undecided"})
    if quality.passed is not True:
        verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        return Judgement(verdict=verdict, reason=quality.detail, quality=quality)
    return _timed(comparison, evidence, objective, quality)


def less_penalty(comparison: Comparison, quality: Quality) -> Comparison:
    """The comparison with the speedup that is left where the steps that rounding costs are charged to it."""
    speed, penalty = comparison.estimate, quality.step_penalty
    if speed is None or penalty is None:
        return comparison
    net = {"value": speed.value / penalty.value, "low": speed.low / penalty.high, "high": speed.high / penalty.low}
    return comparison.model_copy(update={"estimate": speed.model_copy(update=net)})


def _price(comparison: Comparison, net: Comparison, quality: Quality, objective: Objective) -> Judgement | None:
    """A refusal where the steps that rounding costs take the gain away, or may turn it into a loss."""
    speed, left, penalty = comparison.estimate, net.estimate, quality.step_penalty
    if speed is None or left is None or penalty is None:
        return None
    worth = left.value >= 1 + objective.min_gain
    if worth and left.low > 1.0:
        return None
    reason = (
        f"{speed.value:.3f}x a step costs {penalty.value - 1:.1%} more steps (error of the gradient "
        f"{quality.gradient_error or 0.0:.2g} of its spread), which leaves {left.value:.3f}x [{left.low:.3f}, "
        f"{left.high:.3f}]"
    )
    return Judgement(verdict=Verdict.INCONCLUSIVE if worth else Verdict.NO_GAIN, reason=reason, quality=quality)


def required_runs(
    risk: Risk, comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise
) -> RequiredRuns:
    """The trainings that :func:`judge` still wants; false when it has all that it would use."""
    if before_quality(risk, comparison, evidence):
        return RequiredRuns()
    noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    have = len(evidence.paired_with_incumbent())
    if risk.trains_otherwise:
        if have < FEWEST_SEEDS:
            return RequiredRuns(
                baseline_seeds=FEWEST_SEEDS,
                candidate_seeds=FEWEST_SEEDS,
                why=f"a change of class {risk.value} is trained to the target from {FEWEST_SEEDS} seeds",
            )
        judged = judge_trained(comparison, evidence, objective)
        more = have + 1 if more_seeds_help(judged, have, objective) else 0
        return RequiredRuns(baseline_seeds=more, candidate_seeds=more, why="time to target is undecided")
    known = evidence.level
    differing = apart(evidence) if 0 < have < FEWEST_SEEDS and objective.metric is not None else []
    if differing and all(share <= GROSS for _, share, _ in differing):
        why = "losses of one seed differ, which decides nothing"
        return RequiredRuns(baseline_seeds=FEWEST_SEEDS, candidate_seeds=FEWEST_SEEDS, why=why)
    if known is None or known.passed is not None or objective.metric is None or evidence.accept_undecided:
        return RequiredRuns()
    if _paths(risk, comparison, evidence).passed is False or have >= MOST_METRIC_SEEDS:
        return RequiredRuns()
    difference = metric_difference(evidence.paired_with_incumbent(), objective, noise)
    if difference is not None and (difference.proved or difference.lost or _out_of_reach(difference, have)):
        return RequiredRuns()
    wanted = max(have + 1, FEWEST_SEEDS)
    needed = wanted if difference is None else max(wanted, _needed(difference, have) or 0)
    return RequiredRuns(baseline_seeds=wanted, candidate_seeds=wanted, needed_seeds=needed, why=known.detail)


def _out_of_reach(difference: MetricDifference, have: int) -> bool:
    """Whether not even all the seeds there may be would prove a difference like this one.

    That of one seed is mostly chance: of it only how far evaluations scatter is believed.
    """
    if have < FEWEST_SEEDS:
        return _needed(difference, have) is None
    with_all = difference.error * (have / MOST_METRIC_SEEDS) ** 0.5
    return bool(difference.estimate.value - 2.0 * with_all < -difference.margin)


def _needed(difference: MetricDifference, have: int) -> int | None:
    """Seeds that would prove it if the change loses nothing; None where not even all there may be would."""
    spread = difference.error * (have / 2) ** 0.5
    return fewest_seeds(spread, difference.margin + max(difference.estimate.value, 0.0), MOST_METRIC_SEEDS)


def before_quality(risk: Risk, comparison: Comparison, evidence: Evidence) -> Judgement | None:
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


SAME_BATCH = 0.2
"""Samples of a step, relative: an epoch ends with a smaller batch, of which blocks hold more or fewer."""


def _trained_anyway(risk: Risk, comparison: Comparison) -> bool:
    """Whether a change that is not proved faster per sample may still reach the target sooner.

    One that leaves the batch alone may (a schedule); another batch that brings no throughput is not worth
    its trainings.
    """
    if not risk.trains_otherwise or comparison.decision is Decision.HARMFUL:
        return False
    before, after = comparison.incumbent.per_step, comparison.candidate.per_step
    if before is None or after is None:
        return False  # no process of it was measured: what goes on from an earlier trial was not worth another pair
    return isclose(before, after, rel_tol=SAME_BATCH)


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


def judge_runs(evidence: Evidence, objective: Objective, noise: Noise, *, otherwise: bool = False) -> Quality:
    """Quality of the final plan's trainings against the baseline's, for verification from end to end.

    ``passed`` is False for a loss that is not finite, fewer evaluated samples, a target missed from a seed from which
    the baseline reaches it, losses that are not as before where the steps are the same ones (``evidence.level``),
    or a metric that is certainly worse; None where it is not proven.

    Args:
        otherwise: the plan takes other steps by its class. At the same step it may well have learnt less: it is as good
            where it comes to the target from every seed, each in its own steps, and stays there.
    """
    pairs, level = evidence.paired(), evidence.level
    for run in evidence.candidate_runs:
        if not run.finite or any(loss is None for loss in run.losses):
            return Quality(method="metric", passed=False, detail=f"a loss from seed {run.seed} is not finite")
        if not run.losses:
            return Quality(method="not_tested", passed=False, detail=f"no loss was captured from seed {run.seed}")
    if level is not None and level.passed is False:
        return level
    same = level is not None and level.passed is True
    noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    lost = fewer_evaluated(pairs) or missed_target(pairs, objective) or fell_after_target(pairs, objective, noise)
    if lost:
        return Quality(method="metric", passed=False, metric=objective.metric, seeds=len(pairs), detail=lost)
    if same and level is not None:
        level = judge_whole_runs(level, evidence)
        if level.passed is False:
            return level
        same = level.passed is True
    if otherwise and len(pairs) >= FEWEST_SEEDS and objective.target is not None:
        return arrived(pairs, objective)
    difference = metric_difference(pairs, objective, noise)
    if difference is None and level is None:
        what = objective.metric or "no metric"
        detail = f"quality undecided: {what} was not measured on both sides"
        return Quality(method="not_tested", level="undecided", metric=objective.metric, detail=detail)
    if difference is None:
        return level or NOT_TESTED
    quality = metric_quality(difference, objective)
    if quality.passed is False or not same or level is None:
        return quality
    by_metric = {
        "metric", "baseline", "candidate", "difference", "margin", "seeds", "detectable_loss", "seeds_wanted", "method"
    }  # fmt: skip
    update = {name: getattr(quality, name) for name in by_metric}
    seen = quality.detail.removeprefix("quality undecided: observed ")
    if quality.passed is None:  # the contract's promise for what may round: kept by gradients, and said so
        seen = f"it rests on gradients and losses, for the metric alone is too noisy to show it: {seen}"
    rests_on = "; ".join(text for text in (level.rests_on, quality.rests_on) if text)
    return level.model_copy(update={**update, "rests_on": rests_on, "detail": f"{level.detail}; {seen}"})


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
        own = common(before.losses, evidence.rounded)
        if quality.passed is False and own is not None and as_rounded(paths, own):
            told = f"{quality.detail}, no more than a rounding of its first weights takes the incumbent"
            quality = quality.model_copy(update={"passed": True, "detail": told})
        if quality.passed is False and evidence.level is not None and evidence.level.passed and parted_late(paths):
            told = f"{quality.detail}, which trainings of several seeds have to decide"
            quality = quality.model_copy(update={"passed": True, "detail": told})
    if quality.passed:
        return judge_whole_runs(quality, evidence)
    return quality


def may_be_rounding(risk: Risk, comparison: Comparison, evidence: Evidence) -> int:
    """Steps over which the incumbent itself, a rounding apart, would tell why losses part; 0 where that is not asked.

    That is where probes show the same training but for rounding, and losses part all the same: of a training that is
    unstable at first, and of networks that are trained against each other.
    """
    level, paths = evidence.level, common(comparison.incumbent.losses, comparison.candidate.losses)
    if risk is not Risk.NUMERIC or paths is None or level is None or level.passed is not True:
        return 0
    parted = not evidence.rounded.losses and _paths(risk, comparison, evidence).passed is False
    return int(paths.steps[-1]) + 1 if parted else 0


def _leveled(paths: Quality, evidence: Evidence, objective: Objective, noise: Noise) -> Quality:
    """The quality level on top of the loss paths: by the probe, or where that does not tell by the metric.

    ``passed`` is None where neither proves anything; the difference that was observed stands in the document. Where no
    probe was made, losses that are the same to rounding step by step stand in for it.
    """
    if paths.passed is False:
        return paths
    known = evidence.level
    if known is not None and known.passed is not None:
        detail = f"{known.detail}; {paths.detail}"
        return known.model_copy(
            update={"largest_loss_difference": paths.largest_loss_difference, "detail": detail, "margin": paths.margin}
        )
    if known is None and paths.method == "losses":
        return paths.model_copy(update={"level": "equivalent"})
    why = known.detail if known is not None else "no probe was made"
    pairs = evidence.paired_with_incumbent()
    fewer = fewer_evaluated(pairs)
    if fewer:
        return Quality(method="metric", passed=False, metric=objective.metric, detail=fewer)
    difference, missed = metric_difference(pairs, objective, noise), missed_target(pairs, objective)
    if difference is not None and missed:
        seen = metric_quality(difference, objective)
        return seen.model_copy(update={"level": None, "passed": False, "detail": missed})
    if difference is None:
        what = f"{objective.metric} was not measured" if objective.metric else "there is no metric"
        detail = f"quality undecided: {why}; {what}"
        return Quality(method="not_tested", level="undecided", metric=objective.metric, detail=detail)
    quality = metric_quality(difference, objective)
    return quality.model_copy(update={"detail": f"{quality.detail} ({why})", "steps": paths.steps})


def _timed(comparison: Comparison, evidence: Evidence, objective: Objective, quality: Quality) -> Judgement:
    """Time to target of a change that is faster and as good: what it costs, in steps and once, must pay off too."""
    net = less_penalty(comparison, quality)
    refused = _price(comparison, net, quality, objective)
    if refused:
        return refused
    found = same_steps(net, evidence, objective)
    ratio = found.ratio if found is not None else None
    known = {"quality": quality, "time_to_target": ratio, "planned_steps": found.planned_steps if found else None}
    if ratio is not None and ratio.value < 1 + objective.min_gain:
        reason = both_figures("its fixed cost does not pay in the planned run", comparison, ratio)
        return Judgement.model_validate({"verdict": Verdict.NO_GAIN, "reason": reason, **known})
    reason = f"{comparison.reason}; {quality.detail}"
    return Judgement.model_validate({"verdict": Verdict.KEPT, "reason": reason, **known})
