"""Changes of class ``training`` and ``model``: trained to the target itself, and time to target decides."""

from __future__ import annotations

import math
from statistics import fmean

from autoopt.records import CurvePoint, Estimate, Objective, Quality, Verdict
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import Evidence, Judgement
from autoopt.search.accept.quality import FEWEST_SEEDS, fewer_evaluated
from autoopt.search.accept.time_to_target import TrainedRatio, parts_to, trained_ratio
from autoopt.search.compare.comparison import Comparison

MOST_SEEDS = 6
"""Seeds of a ``training`` or ``model`` change; bounds hold after each of them."""

ENOUGH_SEEDS = 3
"""Seeds after which a change that does not look worth having is left undecided."""

_HARMFUL_ALPHA, _NO_GAIN_ALPHA = 0.05, 0.2


def judge_trained(comparison: Comparison, evidence: Evidence, objective: Objective) -> Judgement:
    """Training and model changes: the target from every seed, then the time that it took."""
    pairs = evidence.paired()
    fewer = fewer_evaluated(pairs)
    quality = Quality(
        method="metric",
        metric=objective.metric,
        seeds=len(pairs),
        passed=None,
        baseline=_mean_best([old for old, _ in pairs], objective),
        candidate=_mean_best([new for _, new in pairs], objective),
    )

    def found(verdict: Verdict, reason: str, passed: bool | None, ratio: Estimate | None = None) -> Judgement:
        level = "trained" if passed else "undecided" if passed is None else None
        seen = quality.model_copy(update={"passed": passed, "detail": reason, "level": level})
        over = evidence.planned_steps if ratio is not None and objective.target_source != "user" else None
        return Judgement(verdict=verdict, reason=reason, quality=seen, time_to_target=ratio, planned_steps=over)

    lost = fewer or missed_target(pairs, objective)
    if lost:
        return found(Verdict.QUALITY_LOST, lost, False)
    if objective.target is None or len(pairs) < FEWEST_SEEDS:
        wanted = "a target" if objective.target is None else f"{FEWEST_SEEDS} seeds trained to the target"
        return found(Verdict.INCONCLUSIVE, f"{wanted} would be needed to judge it; there are {len(pairs)} runs", None)
    ratio = trained_ratio(comparison, evidence, objective)
    if ratio is None:
        return found(Verdict.INCONCLUSIVE, "fewer than two seeds where both reached the target", None)
    verdict, what = _timed(ratio, math.log1p(objective.min_gain), evidence.alpha_accept)
    return found(verdict, both_figures(what, comparison, ratio.estimate), True, ratio.estimate)


def _timed(ratio: TrainedRatio, worth: float, alpha_accept: float) -> tuple[Verdict, str]:
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


def arrived(pairs: list[tuple[TrainingRun, TrainingRun]], objective: Objective) -> Quality:
    """``trained`` where the plan came to the target from every seed, in its own steps; ``undecided`` where it did not.

    Metrics are those at the end of each side's own training, which the target ends.
    """
    there = sum(parts_to(new, objective) is not None for _, new in pairs)
    before, after = (_mean_best([pair[side] for pair in pairs], objective) for side in (0, 1))
    reached = f"{objective.metric} {objective.target:g} reached from {there} of {len(pairs)} seeds, in its own steps"
    beside = f" ({after:.4g} at their ends, where the baseline has {before:.4g})" if after and before else ""
    known = {"metric": objective.metric, "baseline": before, "candidate": after, "seeds": len(pairs)}
    passed = True if there == len(pairs) else None
    level, told = ("trained", "") if passed else ("undecided", "quality undecided: ")
    return Quality(method="metric", level=level, passed=passed, detail=f"{told}{reached}{beside}", **known)


def more_seeds_help(judged: Judgement, seeds: int, objective: Objective) -> bool:
    """Whether another seed may still decide a time to target; what does not look worth having gets three at most."""
    if judged.verdict is not Verdict.INCONCLUSIVE or seeds >= MOST_SEEDS:
        return False
    ratio = judged.time_to_target
    return seeds < ENOUGH_SEEDS or ratio is None or ratio.value > 1.0 + objective.min_gain


def missed_target(pairs: list[tuple[TrainingRun, TrainingRun]], objective: Objective) -> str:
    """A sentence where the target is missed from a seed from which the baseline reaches it, else empty."""
    if objective.target is None:
        return ""
    short = [new for old, new in pairs if parts_to(old, objective) and not parts_to(new, objective)]
    if not short:
        return ""
    return (
        f"{objective.metric} {objective.target:g} not reached in {short[0].steps} steps from {len(short)} of "
        f"{len(pairs)} seeds, where the baseline reaches it (best {_best(short[0].curve.points, objective)})"
    )


def both_figures(what: str, comparison: Comparison, ratio: Estimate) -> str:
    """A sentence with both figures: throughput and time to target."""
    speed = comparison.estimate
    shown = f"throughput {speed.value:.2f}x" if speed else "throughput not measured"
    return f"{what}: {shown}, time to target {ratio.value:.2f}x [{ratio.low:.2f}, {ratio.high:.2f}] (above 1 is faster)"


def _mean_best(runs: list[TrainingRun], objective: Objective) -> float | None:
    """The mean over seeds of the best metric that each training came to; None where one was not evaluated."""
    pick = max if objective.mode == "max" else min
    each = [[point.metric for point in run.curve.points if point.metric is not None] for run in runs]
    return fmean(pick(metrics) for metrics in each) if each and all(each) else None


def _best(points: tuple[CurvePoint, ...], objective: Objective) -> str:
    values = [point.metric for point in points if point.metric is not None]
    if not values:
        return "not evaluated"
    return f"{(max if objective.mode == 'max' else min)(values):.4g}"
