"""The quality gate: throughput first, then quality by risk class, then time to target.

* ``exact``, ``numeric``: every loss finite, the loss path as before, and by their probes the same training
  (``identical``), or the same but for rounding (``equivalent``); where probes do not tell, trainings from several seeds
  must show that it is as good (``trained``). The steps that it costs are charged to its speedup.
* ``training``, ``model``: trained to the target from two seeds or more; time to target decides (``trained``).

What was not captured fails: a gate that saw nothing has not been passed. The functions decide from evidence alone;
:class:`Gate` gathers it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from math import isclose

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Noise, Objective, Plan, Quality, Verdict
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import TrainingRun
from autoopt.registry import Registry
from autoopt.search.accept.evidence import (
    FEWEST_SEEDS,
    EvaluationRatios,
    Evidence,
    Judgement,
    RequiredRuns,
    TrainedPair,
    lost_margin,
)
from autoopt.search.accept.levels import level_of
from autoopt.search.accept.losses import (
    GROSS,
    ROUNDING,
    apart,
    common,
    first_not_finite,
    judge_whole_runs,
    parted_late,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
)
from autoopt.search.accept.metric import (
    PAST,
    FurtherSteps,
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
    with_seed_noise,
)
from autoopt.search.accept.probes import Probes
from autoopt.search.accept.time_to_target import (
    TrainedRatio,
    by_whole_run,
    less_penalty,
    price_of,
    same_steps,
    trained_ratio,
)
from autoopt.search.accept.trainings import Clock, Trainings
from autoopt.search.compare.comparison import Comparison, Decision, LossPath, SideFailure
from autoopt.search.compare.error_budget import ALPHA
from autoopt.setup import Setup
from autoopt.strategy import Risk

MOST_METRIC_SEEDS = 4
"""Seeds of a change that its probe does not tell, while its metric is undecided."""

MOST_SEEDS, ENOUGH_SEEDS = 6, 3
"""Seeds of a ``training`` or ``model`` change, whose bounds hold after each of them; and those after which one that
does not look worth having is left undecided."""

SAME_BATCH = 0.2
"""Samples of a step, relative: an epoch ends with a smaller batch, of which blocks hold more or fewer."""

NOT_TESTED = Quality(method="not_tested")

_SPEED = {
    Decision.REJECT: Verdict.NO_GAIN,
    Decision.HARMFUL: Verdict.HARMFUL,
    Decision.INCONCLUSIVE: Verdict.INCONCLUSIVE,
}
_HARMFUL_ALPHA, _NO_GAIN_ALPHA = 0.05, 0.2
_SUMS = 8 * ROUNDING[None]
"""Rounding of float32 sums that are added up in another order."""
_PRODUCTS: dict[str | None, float] = {"medium": ROUNDING["bfloat16"], "high": ROUNDING["float16"]}
"""Rounding of products, by torch's name for their precision."""


def judge(comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise) -> Judgement:
    """The verdict from what there is; gather what :func:`required_runs` asks for first.

    Args:
        comparison: candidate against incumbent.
        evidence: trainings and facts.
        objective: metric, target, tolerance, and the gain worth having.
        noise: with the seed noise of the metric, where it was measured.
    """
    early = before_quality(comparison, evidence)
    if early:
        return early
    if evidence.risk.trains_otherwise:
        return judge_trained(comparison, evidence, objective)
    quality = _quality(comparison, evidence, objective, noise)
    if quality.passed is None and evidence.accept_undecided:
        quality = quality.model_copy(update={"passed": True, "level": "undecided"})
    if quality.passed is not True:
        verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        return Judgement(verdict=verdict, reason=quality.detail, quality=quality)
    return _paid(comparison, evidence, objective, quality)


def before_quality(comparison: Comparison, evidence: Evidence) -> Judgement | None:
    """A judgement that needs no look at quality: failures, throughput, losses that are missing or not finite."""
    failure, before, after = comparison.failure or evidence.failure, comparison.incumbent, comparison.candidate
    if failure:
        verdict = Verdict.FAILED if failure.side == "candidate" else Verdict.INCONCLUSIVE
        reason = failure.reason if verdict is Verdict.FAILED else f"the incumbent failed beside it: {failure.reason}"
        return Judgement(verdict=verdict, reason=reason, quality=NOT_TESTED)
    if comparison.decision is not Decision.ACCEPT and not _trained_anyway(comparison, evidence):
        return Judgement(verdict=_SPEED[comparison.decision], reason=comparison.reason, quality=NOT_TESTED)
    if not after.losses.losses:
        reason = "error: no loss was captured, so quality cannot be judged"
        return Judgement(verdict=Verdict.FAILED, reason=reason, quality=Quality(method="not_tested", passed=False))
    bad = _not_finite(comparison, evidence)
    if bad:
        quality = Quality(method="loss_path", passed=False, detail=f"{bad} is not finite")
        return Judgement(verdict=Verdict.FAILED, reason=f"not_finite: {bad}", quality=quality)
    memory = lost_margin(before, after, evidence.memory_limit_bytes, evidence.candidate_runs)
    if memory:
        reason = f"memory: {memory} ({comparison.reason})"
        return Judgement(verdict=Verdict.HARMFUL, reason=reason, quality=NOT_TESTED)
    usual, fewer = before.evaluated_samples, after.evaluated_samples
    if usual is None or fewer is None or fewer >= usual:
        return None
    detail = f"evaluated on {fewer} samples where the incumbent was evaluated on {usual}"
    quality = Quality(method="metric", passed=False, detail=detail)
    return Judgement(verdict=Verdict.QUALITY_LOST, reason=detail, quality=quality)


def _trained_anyway(comparison: Comparison, evidence: Evidence) -> bool:
    """Whether a change that is not proved faster per sample may still reach the target sooner.

    One that leaves the batch alone may (a schedule); another batch that brings no throughput is not worth
    its trainings.
    """
    before, after = comparison.incumbent.per_step, comparison.candidate.per_step
    if not evidence.risk.trains_otherwise or comparison.decision is Decision.HARMFUL:
        return False
    if before is None or after is None:
        return False  # no process of it was measured: what goes on from an earlier trial was not worth another pair
    return isclose(before, after, rel_tol=SAME_BATCH)


def _not_finite(comparison: Comparison, evidence: Evidence) -> str:
    """The loss that is not finite where the incumbent's is, in words: else it is the workload's own way (a scaler)."""
    bad, before = first_not_finite(comparison.candidate.losses), first_not_finite(comparison.incumbent.losses)
    if bad is not None and (before is None or before > bad):
        return f"the loss of step {bad}"
    return next((f"a loss in training from seed {run.seed}" for run in evidence.candidate_runs if not _finite(run)), "")


def _finite(run: TrainingRun) -> bool:
    return run.finite and None not in run.losses


def _quality(comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise) -> Quality:
    """The quality level: losses as before, and then by the probe, or where that does not tell by trainings.

    ``passed`` is None where neither proves anything; the difference that was observed stands in the document. Where no
    probe was made, losses that are the same to rounding step by step stand in for it.
    """
    paths, known = _paths(comparison, evidence), evidence.level
    if paths.passed is False:
        return paths
    if known is not None and known.passed is not None:
        seen = {"largest_loss_difference": paths.largest_loss_difference, "margin": paths.margin}
        return known.model_copy(update={**seen, "detail": f"{known.detail}; {paths.detail}"})
    if known is None and paths.method == "losses":
        return paths.model_copy(update={"level": "equivalent"})
    why = known.detail if known is not None else "no probe was made"
    found, pairs = _trained(comparison, evidence, objective, noise), evidence.paired_with_incumbent()
    lost = fewer_evaluated(pairs) or missed_target(pairs, objective)
    if lost:
        seen = found[0] or Quality(method="metric", metric=objective.metric)
        return seen.model_copy(update={"level": None, "passed": False, "detail": lost})
    if found[0] is None:
        what = f"{objective.metric} was not measured" if objective.metric else "there is no metric"
        detail = f"quality undecided: {why}; {what}"
        return Quality(method="not_tested", level="undecided", metric=objective.metric, detail=detail)
    return found[0].model_copy(update={"detail": f"{found[0].detail} ({why})", "steps": paths.steps})


def _trained(
    comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise
) -> tuple[Quality | None, MetricDifference | None, FurtherSteps | None]:
    """What trainings tell of a change that takes the same steps: by the metric at these, or by further ones."""
    pairs, known = evidence.paired_with_incumbent(), with_seed_noise(noise, evidence.baseline_runs, objective)
    difference, speed = metric_difference(pairs, objective, known), comparison.estimate
    further = further_steps(pairs, evidence.baseline_runs, speed, objective) if speed is not None else None
    if difference is None:
        return None, None, further
    return trained_quality(metric_quality(difference, objective), further), difference, further


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
        quality = same_within_tolerance(paths, common(before.losses, evidence.rounded))
        if quality.passed is False and level is not None and level.passed and parted_late(paths):
            told = f"{quality.detail}, which trainings of several seeds have to decide"
            quality = quality.model_copy(update={"passed": True, "detail": told})
    return judge_whole_runs(quality, evidence) if quality.passed else quality


def may_be_rounding(comparison: Comparison, evidence: Evidence) -> int:
    """Steps over which the incumbent itself, a rounding apart, would tell why losses part; 0 where that is not asked.

    That is where probes show the same training but for rounding, and losses part all the same: of a training that is
    unstable at first, and of networks that are trained against each other.
    """
    level, paths = evidence.level, common(comparison.incumbent.losses, comparison.candidate.losses)
    if evidence.risk is not Risk.NUMERIC or paths is None or level is None or level.passed is not True:
        return 0
    parted = not evidence.rounded.losses and _paths(comparison, evidence).passed is False
    return int(paths.steps[-1]) + 1 if parted else 0


def _paid(comparison: Comparison, evidence: Evidence, objective: Objective, quality: Quality) -> Judgement:
    """The verdict on what is faster and as good: what it costs, in steps and once, must pay off too."""
    net = less_penalty(comparison, quality)
    speed, left, penalty = comparison.estimate, net.estimate, quality.step_penalty
    worth = left is None or left.value >= 1 + objective.min_gain
    if speed and left and penalty and (not worth or left.low <= 1.0):
        error = f" (error of the gradient {quality.gradient_error:.2g} of its spread)" if quality.gradient_error else ""
        reason = (
            f"{speed.value:.3f}x a step costs {penalty.value - 1:.1%} more steps{error}, which leaves "
            f"{left.value:.3f}x [{left.low:.3f}, {left.high:.3f}]"
        )
        verdict = Verdict.INCONCLUSIVE if worth else Verdict.NO_GAIN
        return Judgement(verdict=verdict, reason=reason, quality=quality)
    found = same_steps(net, evidence, objective)
    ratio = found.ratio if found is not None else None
    verdict, reason = Verdict.KEPT, f"{comparison.reason}; {quality.detail}"
    if ratio is not None and ratio.value < 1 + objective.min_gain:
        verdict = Verdict.NO_GAIN
        reason = _both_figures("its fixed cost does not pay in the planned run", comparison, ratio)
    over = found.planned_steps if found is not None else None
    return Judgement(verdict=verdict, reason=reason, quality=quality, time_to_target=ratio, planned_steps=over)


def judge_trained(comparison: Comparison, evidence: Evidence, objective: Objective) -> Judgement:
    """Training and model changes: the target from every seed, then the time that it took."""
    pairs = evidence.paired()
    before, after = (mean_best([pair[side] for pair in pairs], objective) for side in (0, 1))
    known = {"metric": objective.metric, "seeds": len(pairs), "baseline": before, "candidate": after}

    def found(verdict: Verdict, reason: str, passed: bool | None, ratio: Estimate | None = None) -> Judgement:
        level = "trained" if passed else "undecided" if passed is None else None
        quality = Quality.model_validate(
            {"method": "metric", "passed": passed, "detail": reason, "level": level, **known}
        )
        over = evidence.planned_steps if ratio is not None and objective.target_source != "user" else None
        return Judgement(verdict=verdict, reason=reason, quality=quality, time_to_target=ratio, planned_steps=over)

    lost = fewer_evaluated(pairs) or missed_target(pairs, objective)
    if lost:
        return found(Verdict.QUALITY_LOST, lost, False)
    if objective.target is None or len(pairs) < FEWEST_SEEDS:
        wanted = "a target" if objective.target is None else f"{FEWEST_SEEDS} seeds trained to the target"
        return found(Verdict.INCONCLUSIVE, f"{wanted} would be needed to judge it; there are {len(pairs)} runs", None)
    ratio = trained_ratio(comparison, evidence, objective)
    if ratio is None:
        return found(Verdict.INCONCLUSIVE, "fewer than two seeds where both reached the target", None)
    verdict, what = time_verdict(ratio, math.log1p(objective.min_gain), evidence.alpha_accept)
    return found(verdict, _both_figures(what, comparison, ratio.estimate), True, ratio.estimate)


def time_verdict(ratio: TrainedRatio, worth: float, alpha_accept: float) -> tuple[Verdict, str]:
    """The verdict on a time to target, by bounds that hold at every look, with a sentence.

    Args:
        worth: log of the speedup worth having.
        alpha_accept: chance of keeping what brings nothing.
    """
    if ratio.bounds(alpha_accept)[0] > worth:
        return Verdict.KEPT, "target reached from every seed"
    if ratio.bounds(_HARMFUL_ALPHA)[1] < 0.0:
        return Verdict.HARMFUL, "time to target is longer"
    if ratio.bounds(_NO_GAIN_ALPHA)[1] < worth:
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
    return f"{what}: {shown}, time to target {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] (above 1 is faster)"


def required_runs(comparison: Comparison, evidence: Evidence, objective: Objective, noise: Noise) -> RequiredRuns:
    """The trainings that :func:`judge` still wants; false when it has all that it would use.

    Those that a metric takes are planned from how far seeds scatter: where not even all that there may be would show a
    change that loses nothing to be as good, none is begun.
    """
    have, nothing = len(evidence.paired_with_incumbent()), RequiredRuns()
    if before_quality(comparison, evidence):
        return nothing
    if evidence.risk.trains_otherwise:
        if have < FEWEST_SEEDS:
            return RequiredRuns(seeds=FEWEST_SEEDS)
        more = more_seeds_help(judge_trained(comparison, evidence, objective), have, objective)
        return RequiredRuns(seeds=have + 1) if more else nothing
    differing = apart(evidence) if 0 < have < FEWEST_SEEDS and objective.metric is not None else []
    if differing and all(share <= GROSS for _, share, _ in differing):
        return RequiredRuns(seeds=FEWEST_SEEDS)  # losses of one seed differ, which decides nothing
    known = evidence.level
    if known is None or known.passed is not None or objective.metric is None or evidence.accept_undecided:
        return nothing
    if have >= MOST_METRIC_SEEDS or _paths(comparison, evidence).passed is False:
        return nothing
    quality, difference, further = _trained(comparison, evidence, objective, noise)
    if quality is not None and quality.passed is not None:
        return nothing
    known_noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    planned = _planned(comparison, evidence, objective, known_noise, difference, further)
    wanted = max(have + 1, FEWEST_SEEDS)
    return nothing if planned is None else RequiredRuns(seeds=wanted, planned=max(wanted, planned))


def _planned(
    comparison: Comparison,
    evidence: Evidence,
    objective: Objective,
    noise: Noise,
    difference: MetricDifference | None,
    further: FurtherSteps | None,
) -> int | None:
    """Seeds that would show it by the metric or by the steps to the target, whichever takes fewer; None: neither would.

    A difference of one seed is mostly chance: of it only how far evaluations scatter is believed. Of several, one is
    given up that would have to be off by two standard errors of all seeds that there may be.
    """
    have, speed, target = len(evidence.paired_with_incumbent()), comparison.estimate, objective.target
    found: list[int | None] = []
    if difference is None:
        known = noise.seed_noise is not None and target is not None
        margin = objective.tolerance * abs(target or 0.0)
        found.append(fewest_seeds(noise.seed_noise or 0.0, margin, MOST_METRIC_SEEDS) if known else FEWEST_SEEDS)
    else:
        spread, room = difference.error * math.sqrt(have / 2), difference.margin + max(difference.estimate.value, 0.0)
        least = difference.estimate.value - 2.0 * difference.error * math.sqrt(have / MOST_METRIC_SEEDS)
        if have < FEWEST_SEEDS or least >= -difference.margin:
            more = None if have < FEWEST_SEEDS else have + 1
            found.append(fewest_seeds(spread, room, MOST_METRIC_SEEDS) or more)
    if target is not None and speed is not None:
        seen = max(further.ratio.value, 1.0) if further is not None else 1.0
        room = math.log(speed.low / (1 + objective.min_gain) / seen)
        spread = steps_spread(evidence.baseline_runs, objective) / math.sqrt(2)
        found.append(fewest_seeds(spread, room, MOST_METRIC_SEEDS))
    return min((seeds for seeds in found if seeds), default=None)


def judge_runs(evidence: Evidence, objective: Objective, noise: Noise) -> Quality:
    """Quality of the final plan's trainings against the baseline's, for verification from end to end.

    ``passed`` is False for a loss that is not finite, fewer evaluated samples, a target missed from a seed from which
    the baseline reaches it, losses that are not as before where the steps are the same ones (``evidence.level``),
    or a metric that is certainly worse; None where it is not proven. A plan that takes other steps by its class may
    well have learnt less at the same step: it is as good where it comes to the target from every seed, each in its own
    steps, and stays there. So is one whose metric is too noisy to tell, for its own steps make the headline.
    """
    pairs, level = evidence.paired(), evidence.level
    for run in evidence.candidate_runs:
        if not _finite(run):
            return Quality(method="metric", passed=False, detail=f"a loss from seed {run.seed} is not finite")
        if not run.losses:
            return Quality(method="not_tested", passed=False, detail=f"no loss was captured from seed {run.seed}")
    if level is not None and level.passed is False:
        return level
    noise = with_seed_noise(noise, evidence.baseline_runs, objective)
    lost = fewer_evaluated(pairs) or missed_target(pairs, objective) or fell_after_target(pairs, objective, noise)
    if lost:
        return Quality(method="metric", passed=False, metric=objective.metric, seeds=len(pairs), detail=lost)
    if level is not None and level.passed is True:
        level = judge_whole_runs(level, evidence)
        if level.passed is False:
            return level
    by_target = len(pairs) >= FEWEST_SEEDS and objective.target is not None
    if evidence.risk.trains_otherwise and by_target:
        return arrived(pairs, objective)
    difference = metric_difference(pairs, objective, noise)
    if difference is None and level is None:
        what = objective.metric or "no metric"
        detail = f"quality undecided: {what} was not measured on both sides"
        return Quality(method="not_tested", level="undecided", metric=objective.metric, detail=detail)
    if difference is None:
        return level or NOT_TESTED
    quality = metric_quality(difference, objective)
    if level is None or level.passed is not True or quality.passed is False:
        there = arrived(pairs, objective) if by_target and quality.passed is None and level is not None else quality
        return there if there.passed else quality
    by_metric = ("metric", "baseline", "candidate", "difference", "margin", "seeds", "detectable_loss", "seeds_wanted")
    seen = quality.detail.removeprefix("quality undecided: observed ")
    if quality.passed is None:  # the contract's promise for what may round: kept by gradients, and said so
        seen = f"it rests on gradients and losses, for the metric alone is too noisy to show it: {seen}"
    rests_on = "; ".join(text for text in (level.rests_on, quality.rests_on) if text)
    update = {name: getattr(quality, name) for name in (*by_metric, "method")}
    return level.model_copy(update={**update, "rests_on": rests_on, "detail": f"{level.detail}; {seen}"})


@dataclass
class Gate:
    """Gathers what the decisions rest on, within the time there is, and asks for the verdict.

    Args:
        trainings: durable trainings.
        registry: knows the risk and the setup of a plan.
        seed: the first seed; further ones follow.
        now: the run's clock.
        baseline: the plan that everything is compared with.
        memory_limit_bytes: of the device; None where it is not known.
        probes: durable probes; None where there are none, which leaves quality to trainings.
        accept_undecided: keeps what is not proven to train as well.
        evaluations: what was measured of the seconds of an evaluation under other settings of its loader.
    """

    trainings: Trainings
    registry: Registry
    seed: int
    now: Clock
    baseline: Plan = field(default_factory=Plan)
    memory_limit_bytes: int | None = None
    probes: Probes | None = None
    accept_undecided: bool = False
    evaluations: EvaluationRatios = field(default_factory=EvaluationRatios)
    _prices: dict[tuple[str, str], float] = field(default_factory=dict, init=False)

    def decide(
        self,
        plan: Plan,
        comparison: Comparison,
        facts: WorkloadFacts,
        objective: Objective,
        noise: Noise,
        *,
        deadline: float,
        number: int,
        alpha_accept: float = ALPHA,
    ) -> Judgement:
        """The verdict on a candidate; trains it and the baseline as long as that is wanted and there is time.

        Args:
            plan: the candidate.
            deadline: on the run's clock.
            number: of the trial, which names its trainings.
            alpha_accept: the level at which a change of training is kept.
        """
        incumbent = comparison.incumbent.plan
        evidence = self.evidence(plan, incumbent, facts)
        otherwise = evidence.risk.trains_otherwise
        if not otherwise:
            comparison = by_whole_run(comparison, evidence, objective)
        level = None if before_quality(comparison, evidence) else self.quality(plan, incumbent, facts, objective)
        known, short = {"level": level, "alpha_accept": alpha_accept}, ""
        settled = level is not None and level.passed is not None  # the final plan is trained anyway
        while otherwise or not settled:
            evidence = self.evidence(plan, incumbent, facts).model_copy(update=known)
            wanted = required_runs(comparison, evidence, objective, noise)
            short = self._gather(wanted, plan, incumbent, comparison, deadline, number) if wanted else ""
            if not wanted or short or self.trainings.failure(plan):
                break
        evidence = self.evidence(plan, incumbent, facts).model_copy(update=known)
        steps = may_be_rounding(comparison, evidence)
        if steps:
            evidence = evidence.model_copy(update={"rounded": self._rounded(incumbent, plan, steps)})
        judged = judge(comparison, evidence, objective, noise)
        if short and judged.quality.passed is None and not evidence.failure:
            told = {"detail": f"{judged.quality.detail}; {short}"}
            reason = f"{judged.reason}; {short}"
            judged = judged.model_copy(update={"reason": reason, "quality": judged.quality.model_copy(update=told)})
        return judged

    def screened(
        self, plan: Plan, comparison: Comparison, facts: WorkloadFacts, objective: Objective, noise: Noise
    ) -> Judgement:
        """The verdict by what is known already: nothing is probed or trained for a look, which claims nothing."""
        return judge(comparison, self.evidence(plan, comparison.incumbent.plan, facts), objective, noise)

    def quality(
        self, plan: Plan, incumbent: Plan, facts: WorkloadFacts, objective: Objective, *, hurried: bool = False
    ) -> Quality | None:
        """The quality level of a plan beside another one, by probes alone: seconds, and no training.

        ``passed`` is True with the level ``identical`` or ``equivalent``, False where it is certainly another
        training, and None with the level ``undecided`` where only trainings can tell. The incumbent is probed once.

        Args:
            hurried: there is no time for probes at weights that were kept since the last ones, which will do.

        Returns:
            None where the plan trains otherwise by its risk class, which a probe says nothing of.
        """
        risk, probes = self.risk_over(plan, incumbent), self.probes
        if probes is None or risk.trains_otherwise:
            return None
        any_weights = hurried or risk is Risk.EXACT
        until = min([run.steps for run in self.trainings.of(self.baseline)] or [facts.max_steps or 0])

        def asked(gradients: int) -> Quality:
            both = probes.pair(incumbent, plan, facts, until=until, gradients=gradients, at_any_weights=any_weights)
            return level_of(
                risk,
                *both,
                objective,
                deterministic=facts.dataset.deterministic,
                epsilon=self.rounding(incumbent),
                planned_steps=facts.max_steps,
            )

        try:
            quality, most = asked(0), probes.affordable(facts)
            wanted = quality.batches_wanted
            if wanted is not None and not any_weights and wanted <= most:
                quality = asked(min(int(1.5 * wanted), most))  # half again: it is an estimate
        except TrialFailed as failure:
            return Quality(method="not_tested", level="undecided", detail=f"the probe failed: {failure.reason}")
        self._prices[plan.key, incumbent.key] = price_of(quality)
        return quality

    def price(self, plan: Plan, incumbent: Plan) -> float:
        """The factor on the steps that the rounding of a plan costs, as far as probes were made.

        Of a stack that was not probed it is the product of its changes' own.
        """
        known = self._prices.get((plan.key, incumbent.key))
        if known is not None:
            return known
        new = [incumbent.with_change(change) for change in plan.changes if change not in incumbent.changes]
        return math.prod(self._prices.get((one.key, incumbent.key), 1.0) for one in new)

    def probes_due(self, plan: Plan, incumbent: Plan) -> int:
        """How many probes the quality level of a plan beside another one still costs."""
        if self.probes is None:
            return 0
        exact = self.risk_over(plan, incumbent) is Risk.EXACT
        if exact and self.probes.earlier(incumbent, plan) is not None:
            return 0
        return sum(not self.probes.has(one) for one in (incumbent, plan))

    def _rounded(self, incumbent: Plan, plan: Plan, steps: int) -> LossPath:
        """Losses of the incumbent from weights that differ by what the plan's arithmetic rounds off."""
        precision = self.registry.fold(plan).precision
        size = ROUNDING[precision.dtype] if precision.dtype else _PRODUCTS.get(precision.matmul, _SUMS)
        try:
            return self.probes.rounded(incumbent, size, steps) if self.probes is not None else LossPath()
        except TrialFailed:
            return LossPath()

    def risk_over(self, plan: Plan, incumbent: Plan) -> Risk:
        """The class of the riskiest change that the plan has and the incumbent has not."""
        new = [change for change in plan.changes if change not in incumbent.changes]
        return max((self.registry[change.strategy].risk for change in new), key=lambda r: r.rank, default=Risk.EXACT)

    def rounding(self, plan: Plan) -> float:
        """Relative error of one operation in the precision that a plan computes in."""
        return ROUNDING.get(self.registry.fold(plan).precision.dtype, ROUNDING[None])

    def in_turns(self, plan: Plan) -> tuple[TrainedPair, ...]:
        """The trainings of a plan in turns with the baseline's: nothing was selected by their seconds.

        Empty for a plan that trains otherwise, which was selected by its trainings.
        """
        if self.risk_over(plan, self.baseline).trains_otherwise:
            return ()
        return self.trainings.pairs(self.baseline, plan)

    def evidence(self, plan: Plan, incumbent: Plan, facts: WorkloadFacts) -> Evidence:
        """Trainings and facts of these plans so far."""
        failure, differ = self.trainings.failure(plan), self._steps_differ(incumbent)
        beside, registry = self.trainings.pairs(incumbent, plan), self.registry
        # an incumbent that takes the baseline's steps was shown to train as it does, and stands for it
        reference = incumbent if beside and not differ else self.baseline
        return Evidence(
            risk=self.risk_over(plan, incumbent),
            baseline_runs=self.trainings.of(reference),
            incumbent_runs=self.trainings.of(incumbent) if differ else (),
            candidate_runs=self.trainings.of(plan),
            in_turns=beside,
            deterministic=facts.dataset.deterministic,
            epsilon=self.rounding(incumbent),
            accept_undecided=self.accept_undecided,
            planned_steps=facts.max_steps,
            run=facts.run,
            evaluation_of_incumbent=self.evaluations.ratio(registry.fold(incumbent), Setup()) or 1.0,
            evaluation_ratio=self.evaluations.ratio(registry.fold(plan), registry.fold(incumbent)),
            memory_limit_bytes=self.memory_limit_bytes,
            failure=SideFailure(
                side="candidate",
                kind=failure.kind,
                message=failure.message,
                where=failure.where,
                detail=failure.detail,
            )
            if failure
            else None,
        )

    def _steps_differ(self, plan: Plan) -> bool:
        """Whether a plan takes other steps than the baseline, by the class of its changes."""
        return any(self.registry[c.strategy].risk.trains_otherwise for c in plan.changes)

    def _gather(
        self, wanted: RequiredRuns, plan: Plan, incumbent: Plan, comparison: Comparison, deadline: float, number: int
    ) -> str:
        """Trains a plan in turns with what it is compared with, from the seeds that are wanted.

        What takes other steps is compared with the incumbent, by seconds to the target. What takes the same ones is
        compared with the baseline; these trainings are those of the verification, too, if nothing else is kept, and
        like those they go on past the target, where there is time.

        Returns:
            What they would take, in words, where no time is left for all of them: fewer prove nothing. Else empty.
        """
        trainings, estimate = self.trainings, comparison.estimate
        low, speedup = (max(estimate.low, 1.0), estimate.value) if estimate else (1.0, 1.0)
        differ, otherwise = self._steps_differ(incumbent), self.risk_over(plan, incumbent).trains_otherwise
        beside = incumbent if differ or otherwise else self.baseline
        have = len(trainings.pairs(beside, plan))
        seeds = [self.seed + n for n in range(1, wanted.seeds + 1)]
        missing = [seed for seed in seeds if trainings.pair(beside, plan, seed) is None][: wanted.seeds - have]
        # the metric of another training is held against the baseline's own
        alone = [seed for seed in missing if differ and otherwise and not trainings.has(self.baseline, seed)]
        pairs = max(len(missing), wanted.planned - have)
        seconds = trainings.expected_seconds * (len(alone) + pairs * (1 + 1 / low))
        if not missing or trainings.failure(plan) or self.now() + seconds > deadline:
            return f"{have + pairs} seeds would decide it, whose trainings take about {seconds:.0f} s more"
        beyond = PAST if not otherwise and self.now() + (1 + PAST) * seconds <= deadline else 0.0
        try:
            for seed in alone:
                trainings.get(self.baseline, seed, purpose=f"baseline seed {seed}")
            for seed in missing:
                purpose = f"trial {number} seed {seed}"
                trainings.in_turns(beside, plan, seed, purpose=purpose, speedup=speedup, beyond=beyond, remember=True)
        except TrialFailed as failure:
            return f"its trainings failed: {failure.reason}"  # the judge is told through the evidence
        return ""
