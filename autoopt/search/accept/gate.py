"""The quality gate: throughput first, then quality by risk class, then time to target.

* ``exact``, ``numeric``: every loss finite, the loss path as before, and by their probes the same training
  (``identical``), or the same but for rounding (``equivalent``); where probes do not tell, trainings from several seeds
  must show that it is as good (``trained``). The steps that it costs are charged to its speedup.
* ``training``, ``model``: trained to the target from two seeds or more; time to target decides (``trained``).

What was not captured fails: a gate that saw nothing has not been passed. All here is decided from evidence alone, which
``autoopt.search.accept.gathering`` brings together.
"""

from __future__ import annotations

import math
from math import isclose

from autoopt.records import Estimate, Objective, Quality, Verdict
from autoopt.records.messages import WHOLE_RUN, TrainingRun
from autoopt.search.accept.evidence import FEWEST_SEEDS, Evidence, Judgement, RequiredRuns, lost_margin
from autoopt.search.accept.losses import (
    GROSS,
    apart,
    common,
    judge_whole_runs,
    parted_late,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
)
from autoopt.search.accept.metric import (
    MetricDifference,
    arrived,
    fell_after_target,
    fewer_evaluated,
    fewest_seeds,
    further_steps,
    mean_best,
    metric_difference,
    metric_quality,
    missed_target,
    steps_spread,
    trained_quality,
    unlearned,
    with_seed_noise,
)
from autoopt.search.accept.time_to_target import TrainedRatio, less_penalty, same_steps, trained_ratio
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.sequential_test import ALPHA
from autoopt.strategy import Risk

MOST_METRIC_SEEDS = 4
"""Seeds of a change that its probe does not tell, while its metric is undecided; and of the final plan."""

MOST_SEEDS, ENOUGH_SEEDS = 6, 3
"""Seeds of a ``training`` or ``model`` change, whose bounds hold after each of them; and those after which one that
does not look worth having is left undecided."""

SAME_BATCH = 0.2
"""Samples of a step, relative: an epoch ends with a smaller batch, of which blocks hold more or fewer."""

NOT_TESTED = Quality(method="not_tested")


def judge(comparison: Comparison, evidence: Evidence) -> Judgement:
    """The verdict from what there is; gather what :func:`required_runs` asks for first."""
    early = before_quality(comparison, evidence)
    if early:
        return early
    if evidence.risk.trains_otherwise:
        return judge_trained(comparison, evidence)
    quality = _quality(comparison, evidence)
    if quality.passed is None and evidence.accept_undecided:
        quality = quality.model_copy(update={"passed": True, "level": "undecided"})
    if quality.passed is not True:
        verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        return Judgement(verdict=verdict, reason=quality.detail, quality=quality)
    return _paid(comparison, evidence, quality)


def before_quality(comparison: Comparison, evidence: Evidence) -> Judgement | None:
    """A judgement without a measurement of quality: failures, throughput, losses that are missing or not finite."""
    failure, before, after = comparison.failure or evidence.failure, comparison.incumbent, comparison.candidate
    if failure:
        verdict = Verdict.FAILED if failure.side == "candidate" else Verdict.INCONCLUSIVE
        reason = failure.reason if verdict is Verdict.FAILED else f"the incumbent failed next to it: {failure.reason}"
        return Judgement(verdict=verdict, reason=reason)
    if comparison.decision is not Decision.ACCEPT and not _trained_anyway(comparison, evidence):
        verdict = Verdict.NO_GAIN if comparison.decision is Decision.REJECT else Verdict(comparison.decision)
        return Judgement(verdict=verdict, reason=comparison.reason)
    if not after.losses.losses:
        reason = "error: no loss was captured, so quality cannot be judged"
        return Judgement(verdict=Verdict.FAILED, reason=reason, quality=Quality(method="not_tested", passed=False))
    # the loss that is not finite where the incumbent's is: else it is the workload's own way (a scaler)
    step, usual = after.losses.not_finite, before.losses.not_finite
    bad = "" if step is None or (usual is not None and usual <= step) else f"the loss of step {step}"
    runs = (run for run in evidence.candidate_runs if not _finite(run))
    bad = bad or next((f"a loss in training from seed {run.seed}" for run in runs), "")
    if bad:
        quality = Quality(method="loss_path", passed=False, detail=f"{bad} is not finite")
        return Judgement(verdict=Verdict.FAILED, reason=f"not_finite: {bad}", quality=quality)
    memory = lost_margin(before, after, evidence.memory_limit_bytes, evidence.candidate_runs)
    if memory:
        reason = f"memory: {memory} ({comparison.reason})"
        return Judgement(verdict=Verdict.HARMFUL, reason=reason)
    return None


def _trained_anyway(comparison: Comparison, evidence: Evidence) -> bool:
    """Whether a change that is not confirmed faster per sample may still reach the target sooner: one that leaves the
    batch alone may (a schedule); another batch that brings no throughput is not worth its trainings."""
    before, after = comparison.incumbent.per_step, comparison.candidate.per_step
    if not evidence.risk.trains_otherwise or comparison.decision is Decision.HARMFUL:
        return False
    if before is None or after is None:
        return False  # no process of it was measured: what goes on from an earlier trial was not worth another pair
    return isclose(before, after, rel_tol=SAME_BATCH)


def _finite(run: TrainingRun) -> bool:
    return run.finite and None not in run.losses


def _quality(comparison: Comparison, evidence: Evidence) -> Quality:
    """The quality level: losses as before, and then by the probe, or where that does not tell by trainings.

    ``passed`` is None where neither confirms anything; the difference that was observed stands in the document. Where
    no probe was made, losses that are the same to rounding step by step stand in for it.
    """
    paths, known, objective = _paths(comparison, evidence), evidence.level, evidence.objective
    if paths.passed is False:
        return paths
    if known is not None and known.passed is not None:
        seen = {"largest_loss_difference": paths.largest_loss_difference, "margin": paths.margin}
        return known.model_copy(update={**seen, "detail": f"{known.detail}; {paths.detail}"})
    if known is None and paths.method == "losses":
        return paths.model_copy(update={"level": "equivalent"})
    why = known.detail if known is not None else "no probe was made"
    (measured, *_), pairs = _trained(comparison, evidence), evidence.paired_with_incumbent()
    lost = fewer_evaluated(pairs) or missed_target(pairs, objective)
    if lost:
        measured = measured or Quality(method="metric", metric=objective.metric)
        return measured.model_copy(update={"level": None, "passed": False, "detail": lost})
    if measured is None:
        what = f"{objective.metric} was not measured" if objective.metric else "there is no metric"
        detail = f"quality undecided: {why}; {what}"
        return Quality(method="not_tested", level="undecided", metric=objective.metric, detail=detail)
    return measured.model_copy(update={"detail": f"{measured.detail} ({why})", "steps": paths.steps})


def _trained(
    comparison: Comparison, evidence: Evidence
) -> tuple[Quality | None, MetricDifference | None, Estimate | None]:
    """What trainings tell of a change that takes the same steps: by the metric at these, or by further ones."""
    pairs, objective = evidence.paired_with_incumbent(), evidence.objective
    difference, speed = metric_difference(pairs, objective, with_seed_noise(evidence)), comparison.estimate
    further = further_steps(pairs, evidence)
    if difference is None:
        return None, None, further
    allowed = speed.low / (1 + objective.min_gain) if speed is not None else 0.0
    return trained_quality(metric_quality(difference, objective), further, allowed), difference, further


def _paths(comparison: Comparison, evidence: Evidence) -> Quality:
    """Loss paths of candidate and incumbent in their comparison, and of whole trainings."""
    before, after, level = comparison.incumbent, comparison.candidate, evidence.level
    paths, again = common(before.losses, after.losses), common(before.losses, before.losses_again)
    if paths is None:
        detail = "too few losses in common to tell whether training is the same"
        return Quality(method="not_tested", passed=False, detail=detail)
    if evidence.deterministic is False:
        quality = same_on_average(paths, again)
    elif evidence.risk is Risk.EXACT:
        quality = same_to_rounding(paths, evidence.epsilon, again)
    else:
        probed, rounded = level is not None and bool(level.passed), common(before.losses, evidence.rounded)
        # other draws make another loss of the same weights, at which probes compare gradients without them
        drawn = evidence.drawn and (probed or level is None)
        quality = same_on_average(paths, rounded) if drawn else same_within_tolerance(paths, rounded)
        if quality.passed is False and probed and parted_late(paths):
            text = f"{quality.detail}, which trainings of several seeds have to decide"
            quality = quality.model_copy(update={"passed": True, "detail": text})
    return judge_whole_runs(quality, evidence) if quality.passed else quality


def may_be_rounding(comparison: Comparison, evidence: Evidence) -> int:
    """Steps over which the incumbent itself, a rounding apart, would show why losses part; 0 where that is not asked.

    That is where probes show the same training but for rounding, and losses part all the same: of a training that is
    unstable at first, and of networks that are trained against each other.
    """
    level, paths = evidence.level, common(comparison.incumbent.losses, comparison.candidate.losses)
    if evidence.risk is not Risk.NUMERIC or paths is None or level is None or level.passed is not True:
        return 0
    parted = not evidence.rounded.losses and _paths(comparison, evidence).passed is False
    return int(paths.steps[-1]) + 1 if parted else 0


def _paid(comparison: Comparison, evidence: Evidence, quality: Quality) -> Judgement:
    """The verdict on what is faster and as good: what it costs, in steps and once, must pay off too."""
    net, least = less_penalty(comparison, quality), 1 + evidence.objective.min_gain
    speed, left, penalty = comparison.estimate, net.estimate, quality.step_penalty
    worth = left is None or left.value >= least
    if speed and left and penalty and (not worth or left.low <= 1.0):
        error = f" (error of the gradient {quality.gradient_error:.2g} of its spread)" if quality.gradient_error else ""
        costs = f"{speed.value:.3f}x a step costs {penalty.value - 1:.1%} more steps{error}"
        reason = f"{costs}, which leaves {left.text('.3f')}"
        verdict = Verdict.INCONCLUSIVE if worth else Verdict.NO_GAIN
        return Judgement(verdict=verdict, reason=reason, quality=quality)
    found = same_steps(net, evidence)
    ratio = found.ratio if found is not None else None
    verdict, reason = Verdict.KEPT, f"{comparison.reason}; {quality.detail}"
    if ratio is not None and ratio.value < least:
        verdict = Verdict.NO_GAIN
        reason = _both_figures("its fixed cost does not pay in the planned run", comparison, ratio)
    over = found.planned_steps if found is not None else None
    return Judgement(verdict=verdict, reason=reason, quality=quality, time_to_target=ratio, planned_steps=over)


def judge_trained(comparison: Comparison, evidence: Evidence) -> Judgement:
    """Training and model changes: the target from every seed, then the time that it took."""
    pairs, objective = evidence.paired(), evidence.objective
    before, after = (mean_best([pair[side] for pair in pairs], objective) for side in (0, 1))
    known = {"metric": objective.metric, "seeds": len(pairs), "baseline": before, "candidate": after}

    def found(verdict: Verdict, reason: str, passed: bool | None, ratio: Estimate | None = None) -> Judgement:
        level = "trained" if passed else "undecided" if passed is None else None
        seen = {"method": "metric", "passed": passed, "detail": reason, "level": level}
        quality = Quality.model_validate({**seen, **known})
        over = evidence.planned_steps if ratio is not None and objective.users_target is None else None
        return Judgement(verdict=verdict, reason=reason, quality=quality, time_to_target=ratio, planned_steps=over)

    lost = fewer_evaluated(pairs) or missed_target(pairs, objective)
    if lost:
        return found(Verdict.QUALITY_LOST, lost, False)
    if objective.target is None or len(pairs) < FEWEST_SEEDS:
        wanted = "a target" if objective.target is None else f"{FEWEST_SEEDS} seeds trained to the target"
        return found(Verdict.INCONCLUSIVE, f"{wanted} would be needed to judge it; there are {len(pairs)} runs", None)
    ratio = trained_ratio(comparison, evidence)
    if ratio is None:
        return found(Verdict.INCONCLUSIVE, "fewer than two seeds where both reached the target", None)
    verdict, what = time_verdict(ratio, math.log1p(objective.min_gain), evidence.alpha_accept)
    return found(verdict, _both_figures(what, comparison, ratio.estimate), True, ratio.estimate)


def time_verdict(ratio: TrainedRatio, worth: float, alpha_accept: float) -> tuple[Verdict, str]:
    """The verdict on a time to target, by bounds that hold at every screening; ``worth`` is a log speedup."""
    if ratio.bounds(alpha_accept)[0] > worth:
        return Verdict.KEPT, "target reached from every seed"
    if ratio.bounds(ALPHA)[1] < 0.0:
        return Verdict.HARMFUL, "time to target is longer"
    if ratio.bounds(Rule().alpha_reject)[1] < worth:
        return Verdict.NO_GAIN, "time to target gains too little"
    return Verdict.INCONCLUSIVE, "time to target is undecided"


def more_seeds_help(judged: Judgement, seeds: int, objective: Objective) -> bool:
    """Whether another seed may still decide a time to target; what does not look worth having gets three at most."""
    if judged.verdict is not Verdict.INCONCLUSIVE or seeds >= MOST_SEEDS:
        return False
    ratio = judged.time_to_target
    return seeds < ENOUGH_SEEDS or ratio is None or ratio.value > 1.0 + objective.min_gain


def _both_figures(what: str, comparison: Comparison, ratio: Estimate) -> str:
    """A sentence with both figures: throughput and time to target."""
    speed = comparison.estimate
    shown = f"throughput {speed.value:.2f}x" if speed else "throughput not measured"
    return f"{what}: {shown}, time to target {ratio.text()} (above 1 is faster)"


def required_runs(comparison: Comparison, evidence: Evidence) -> RequiredRuns:
    """The trainings that :func:`judge` still wants; false when it has all that it would use.

    Those that a metric takes are planned from how far seeds scatter: where not even all that there may be would show a
    change that loses nothing to be as good, none is begun.
    """
    have, nothing, objective = len(evidence.paired_with_incumbent()), RequiredRuns(), evidence.objective
    if before_quality(comparison, evidence):
        return nothing
    if evidence.risk.trains_otherwise:
        if have < FEWEST_SEEDS:
            return RequiredRuns(seeds=FEWEST_SEEDS)
        more = more_seeds_help(judge_trained(comparison, evidence), have, objective)
        return RequiredRuns(seeds=have + 1) if more else nothing
    differing = apart(evidence) if 0 < have < FEWEST_SEEDS and objective.metric is not None else []
    if differing and all(share <= GROSS for _, share, _ in differing):
        return RequiredRuns(seeds=FEWEST_SEEDS)  # losses of one seed differ, which decides nothing
    known = evidence.level
    if known is None or known.passed is not None or objective.metric is None or evidence.accept_undecided:
        return nothing
    if have >= MOST_METRIC_SEEDS or _paths(comparison, evidence).passed is False:
        return nothing
    quality, difference, further = _trained(comparison, evidence)
    if quality is not None and quality.passed is not None:
        return nothing
    planned = _planned(comparison, evidence, difference, further)
    wanted = max(have + 1, FEWEST_SEEDS)
    return nothing if planned is None else RequiredRuns(seeds=wanted, planned=max(wanted, planned))


def _planned(
    comparison: Comparison, evidence: Evidence, difference: MetricDifference | None, further: Estimate | None
) -> int | None:
    """Seeds that would show it by the metric or by the steps to the target, whichever takes fewer; None: neither would.

    A difference of one seed is mostly chance: of it only the scatter of evaluations counts. Of several, one is
    given up that would have to be off by two standard errors of all seeds that there may be.
    """
    objective = evidence.objective
    have, speed, target = len(evidence.paired_with_incumbent()), comparison.estimate, objective.target
    found: list[int | None] = []
    if difference is None:
        seed_noise, margin = with_seed_noise(evidence).seed_noise, objective.tolerance * abs(target or 0.0)
        known = seed_noise is not None and target is not None
        found.append(fewest_seeds(seed_noise or 0.0, margin, MOST_METRIC_SEEDS) if known else FEWEST_SEEDS)
    else:
        spread, room = difference.error * math.sqrt(have / 2), difference.margin + max(difference.estimate.value, 0.0)
        least = difference.estimate.value - 2.0 * difference.error * math.sqrt(have / MOST_METRIC_SEEDS)
        if have < FEWEST_SEEDS or least >= -difference.margin:
            more = None if have < FEWEST_SEEDS else have + 1
            found.append(fewest_seeds(spread, room, MOST_METRIC_SEEDS) or more)
    if target is not None and speed is not None:
        seen = max(further.value, 1.0) if further is not None else 1.0
        room = math.log(speed.low / (1 + objective.min_gain) / seen)
        spread = steps_spread(evidence) / math.sqrt(2)
        found.append(fewest_seeds(spread, room, MOST_METRIC_SEEDS))
    return min((seeds for seeds in found if seeds), default=None)


def judge_runs(evidence: Evidence) -> Quality:
    """Quality of the final plan's trainings against the baseline's, for verification from end to end.

    ``passed`` is False for a loss that is not finite, fewer evaluated samples, a target missed from a seed from which
    the baseline reaches it, losses that are not as before where the steps are the same ones (``evidence.level``),
    or a metric that is certainly worse; None where it is not confirmed. A plan that takes other steps by its class may
    well have learnt less at the same step: it is as good where it comes to the target from every seed, each in its own
    steps, and stays there. So is one whose metric is too noisy to tell, for its own steps make the headline.
    """
    pairs, level, objective = evidence.paired(), evidence.level, evidence.objective
    for run in evidence.candidate_runs:
        if not _finite(run):
            return Quality(method="metric", passed=False, detail=f"a loss from seed {run.seed} is not finite")
        if not run.losses and run.stopped != WHOLE_RUN:
            return Quality(method="not_tested", passed=False, detail=f"no loss was captured from seed {run.seed}")
    if level is not None and level.passed is False:
        return level
    noise = with_seed_noise(evidence)
    lost = fewer_evaluated(pairs) or missed_target(pairs, objective) or fell_after_target(pairs, objective, noise)
    lost = lost or unlearned(pairs, objective)
    if lost:
        return Quality(method="metric", passed=False, metric=objective.metric, seeds=len(pairs), detail=lost)
    if level is not None and level.passed is True:
        level = judge_whole_runs(level, evidence)
        if level.passed is False:
            return level
    by_target = len(pairs) >= FEWEST_SEEDS and objective.target is not None
    if evidence.risk.trains_otherwise and by_target:
        return arrived(evidence)
    ended = objective.users_target is not None and any(run.stopped == WHOLE_RUN for run in evidence.candidate_runs)
    difference = None if ended else metric_difference(pairs, objective, noise)  # at the target is where they end
    if difference is None:
        detail = f"quality undecided: {objective.metric or 'no metric'} was not measured on both sides"
        return level or Quality(method="not_tested", level="undecided", metric=objective.metric, detail=detail)
    quality = metric_quality(difference, objective)
    if level is None or level.passed is not True or quality.passed is False:
        there = quality
        if by_target and quality.passed is None and level is not None:
            there = arrived(evidence)
        return there if there.passed else quality
    by_metric = ("metric", "baseline", "candidate", "difference", "margin", "seeds", "detectable_loss", "seeds_wanted")
    seen = quality.detail.removeprefix("quality undecided: observed ")
    if quality.passed is None:  # the contract's promise for what may round: kept by gradients, and said so
        seen = f"it rests on gradients and losses, for the metric alone is too noisy to show it: {seen}"
    rests_on = "; ".join(text for text in (level.rests_on, quality.rests_on) if text)
    update = {name: getattr(quality, name) for name in (*by_metric, "method")}
    return level.model_copy(update={**update, "rests_on": rests_on, "detail": f"{level.detail}; {seen}"})
