"""Changes of evaluations or checkpoints alone: no step is faster by them, so these are timed. The whole run decides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from autoopt.benchmark.target import whole_run_seconds
from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Quality, Speedup, Trial, Verdict
from autoopt.records.evaluating import EvaluationPair, HeldEvaluations
from autoopt.search.accept.evidence import Judgement
from autoopt.search.accept.levels import METRIC_ROUNDING
from autoopt.search.accept.time_to_target import TrainedRatio
from autoopt.search.candidate import FEWEST_PAIRS, Candidate, OpenTrial, candidate_of, settings_of, skip
from autoopt.search.outcome import announce_kept
from autoopt.search.planner import Proposal
from autoopt.search.run_context import RunContext, key_of
from autoopt.search.state import SearchState
from autoopt.strategy import Case

EVALUATIONS = 3
"""Of each process: the first one starts workers that stay, two show what the others take."""
MOST_PAIRS = 6
"""Of processes. What does not look worth having in the first pair has no other, nor
what whole runs confirm: one pair shows whether the metric is the same."""

STAGES = {"evaluate": "evaluation", "checkpoint": "checkpoint"}
"""What comes between steps, in words."""


def try_evaluations(
    context: RunContext,
    proposals: Sequence[Proposal],
    case: Case,
    deadline: float,
    most: int = MOST_PAIRS,
    other: float = 1.0,
) -> None:
    """Tries their settings one after the other; what is kept becomes a part of the incumbent, and the round goes on.

    Args:
        deadline: of the search, on the run's clock.
        most: pairs of processes of a setting; of fewer than keep it, only the likeliest is tried.
        other: the speedup that something else promises: it comes first where no evaluation at all would bring less.
    """
    fewest = min(FEWEST_PAIRS, most)
    for proposal in proposals:
        (stage,) = proposal.strategy.stages
        for setting, answer in settings_of(context, proposal.strategy, case):
            share, left = share_of_run(context.state, stage), deadline - context.now()
            seconds, why = fewest * pair_seconds(context, stage), ""
            if share is None:
                why = f"how much of the run {STAGES[stage]}s take is not known"
            elif (1.0 - share) * max(other, 1.0 + context.min_gain) > 1.0:
                why = f"{STAGES[stage]}s take {share:.1%} of the run: too little to be worth a trial now"
            elif context.stopping() or seconds > left:
                time = f"takes about {seconds:.0f} s, and {max(left, 0):.0f} s were left"
                why = f"no time for it: to time {STAGES[stage]}s {time}"
            if share is None or why:
                skip(context, proposal.strategy, Verdict.NOT_TRIED, why)
                break
            candidate = candidate_of(context, proposal.strategy, case, setting)
            if candidate is None:
                answer(None)
                continue
            trial = _try(context, candidate, stage, share, left, most)
            if most < FEWEST_PAIRS:
                break
            answer(trial)


def share_of_run(state: SearchState, stage: str) -> float | None:
    """Share of a stage between steps in the incumbent's whole run, else in its steps; None where that is not known."""
    run, step = state.run, state.rounds[-1].step_seconds
    if run is None:
        return None
    each, every = run.evaluation_seconds, run.evaluate_every
    if stage == "checkpoint":
        each, every = run.checkpoint_seconds, run.checkpoint_every
    if each is None or not every:
        return None
    if not run.steps:
        return each / (each + step * every)
    part = whole_run_seconds(run.model_copy(update={"step_seconds": step})).part(f"{STAGES[stage]}s")
    return part.share if part is not None else None


def pair_seconds(context: RunContext, stage: str) -> float:
    """Seconds of two processes that evaluate, or save, so often, about; a script trains in between."""
    run, step = context.state.run, context.state.aa.side.step_seconds
    waited = 0.0
    if run is not None:
        trains = context.state.sites is not None  # a build() evaluates when it is asked to
        every = run.checkpoint_every if stage == "checkpoint" else run.evaluate_every
        between = (every or 0.0) * (step.p50 if step is not None else run.step_seconds or 0.0) * trains
        waited = EVALUATIONS * ((run.evaluation_seconds or 0.0) + (run.checkpoint_seconds or 0.0) + between)
    return 2 * (context.allocation.start_seconds + waited)


def _try(context: RunContext, candidate: Candidate, stage: str, share: float, seconds: float, most: int) -> Trial:
    """One setting, until it is decided or its time is up."""
    state, before = context.state, context.state.incumbent
    opened = OpenTrial(context, candidate, "timing evaluations of")
    pairs: list[EvaluationPair] = []
    ruling = Judgement(verdict=Verdict.INCONCLUSIVE, reason="nothing was measured")
    same = stage == "evaluate" and "batch_size" not in candidate.change.setting

    def measure() -> EvaluationPair:
        """A pair of processes, the incumbent's first in every other pair; ``TrialFailed`` where one does not train."""
        found: dict[str, HeldEvaluations] = {}
        plans = {"incumbent": before, "candidate": candidate.plan}
        for side in reversed(plans) if len(pairs) % 2 else plans:
            with context.runner.trial(plans[side], "evaluations") as process:
                task = "autoopt.benchmark.tasks:evaluations"
                reported = process.call(task, timeout=600.0, count=EVALUATIONS, seconds=300.0, stage=stage)
                found[side] = HeldEvaluations.model_validate(reported)
        return EvaluationPair(**found)

    while len(pairs) < most and not context.stopping():
        key = {**key_of(f"trial {opened.number}", before, candidate.plan), "pair": len(pairs)}
        try:
            pair = context.run.step("evaluations", key, measure, EvaluationPair)
        except TrialFailed as failure:
            ruling = Judgement(verdict=Verdict.FAILED, reason=failure.reason)
            break
        pairs.append(pair)
        ruling = rule_on_evaluations(pairs, share, context.min_gain, same_batches=same, stage=stage)
        spent, ratio = context.now() - opened.began, ruling.time_to_target
        decided = ruling.verdict is not Verdict.INCONCLUSIVE or ratio is None
        hopeless = ratio is not None and ratio.value <= 1 + context.min_gain
        enough = 1 if hopeless else FEWEST_PAIRS if decided else most
        if len(pairs) >= enough or spent * (1 + 1 / len(pairs)) > seconds:
            break
    if ruling.time_to_target is not None:
        ruling = ruling.model_copy(update={"planned_steps": state.planned_steps})
    trial = opened.ended(ruling)
    if trial.verdict is Verdict.KEPT and ruling.between_ratio is not None:
        fold = context.registry.fold
        context.gate.evaluations.measured(stage, fold(candidate.plan), fold(before), ruling.between_ratio)
        state.between_ratio[stage] = state.between_ratio.get(stage, 1.0) * ruling.between_ratio
        announce_kept(context, state.aa.side, Speedup(time_to_target=trial.time_to_target))
    return trial


def rule_on_evaluations(
    pairs: Sequence[EvaluationPair], share: float, min_gain: float, *, same_batches: bool, stage: str = "evaluate"
) -> Judgement:
    """The verdict on a setting of the evaluation's loader, or of checkpoints, by processes with the same weights.

    Args:
        share: of the whole run, what evaluations take under the incumbent.
        same_batches: the setting leaves batches as they are, so that the same samples give the same metric.
    """
    failed = next((side.why for pair in pairs for side in (pair.incumbent, pair.candidate) if side.why), "")
    if failed or not pairs:
        return Judgement(verdict=Verdict.INCONCLUSIVE, reason=failed or "nothing was measured")
    quality = _same_metric(pairs, same_batches=same_batches)
    both = [(_seconds(pair.incumbent), _seconds(pair.candidate)) for pair in pairs]
    each = TrainedRatio(tuple(math.log(before / after) for before, after in both), 0.0).estimate
    value, low, high = (1.0 / (1.0 - share + share / faster) for faster in (each.value, each.low, each.high))
    ratio = Estimate(value=value, low=low, high=high, n=len(pairs), confidence=each.confidence)
    before, after = (statistics.geometric_mean(seconds) for seconds in zip(*both, strict=True))
    name = "an evaluation" if stage == "evaluate" else "a checkpoint"
    text = f"{name} takes {after:.3g} s where it took {before:.3g} s, {share:.0%} of the run"
    if quality.passed is not True:
        verdict = Verdict.QUALITY_LOST if quality.passed is False else Verdict.INCONCLUSIVE
        reason = f"{quality.detail}; {text}"
        return Judgement(verdict=verdict, reason=reason, quality=quality, time_to_target=ratio)
    verdict = Verdict.INCONCLUSIVE
    if ratio.low > 1.0 + min_gain:
        verdict = Verdict.KEPT
    elif ratio.high < 1.0 + min_gain:
        verdict = Verdict.HARMFUL if ratio.high < 1.0 else Verdict.NO_GAIN
    reason, between = f"{text}; {quality.detail}", 1.0 / each.value
    return Judgement(verdict=verdict, reason=reason, quality=quality, time_to_target=ratio, between_ratio=between)


def _seconds(side: HeldEvaluations) -> float:
    """Seconds of an evaluation like most of a run: its first one starts what stays."""
    return max(statistics.fmean(side.seconds[1:] or side.seconds), 1e-9)


def _same_metric(pairs: Sequence[EvaluationPair], *, same_batches: bool) -> Quality:
    """Whether an evaluation counts the same samples and gives the same metric, to rounding."""
    sides, samples = [(pair.incumbent, pair.candidate) for pair in pairs], pairs[0].incumbent.samples
    for before, after in sides:
        if before.samples != after.samples:
            detail = f"evaluated on {after.samples} samples where the incumbent was evaluated on {before.samples}"
            return Quality(method="metric", passed=False, detail=detail)
    name = next((before.metric for before, _ in sides if before.metric), None)
    values = list[tuple[float, float, float]]()
    for before, after in sides:
        if before.value is not None and after.value is not None:
            # apart by rounding: of sums, and of the decimals with which both are reported
            digits = [side.digits for side in (before, after) if side.digits is not None]
            least = METRIC_ROUNDING * max(abs(before.value), abs(after.value))
            values.append((before.value, after.value, max(least, 1.01 * 10.0 ** -max(digits) if digits else 0.0)))
    if len(values) < len(pairs):
        if same_batches and samples is not None:
            detail = f"the same {samples} samples in the same batches"
            return Quality(method="metric", level="identical", passed=True, detail=detail)
        detail = "other batches cannot be compared without a metric: name it with --metric"
        return Quality(method="not_tested", level="undecided", detail=detail)
    old, new, tolerance = max(values, key=lambda one: abs(one[0] - one[1]) - one[2])
    passed, level = abs(old - new) <= tolerance, "identical" if old == new else "equivalent"
    detail = f"{name} is {new:.6g} where it was {old:.6g}, at the same weights"
    if passed:
        detail = f"{name} {new:.6g} as before, of the same samples and weights"
    known = {"metric": name, "baseline": old, "candidate": new, "margin": tolerance, "level": level if passed else None}
    return Quality.model_validate({"method": "metric", "passed": passed, "detail": detail, **known})
