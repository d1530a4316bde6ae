"""The headline of a run in words and seconds: to the target that was trained to, or over the planned run."""

from __future__ import annotations

from autoopt.records import Estimate, Objective
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.interleaved import TrainedPair
from autoopt.search.accept.time_to_target import SameSteps, parts_to, same_steps
from autoopt.search.compare.comparison import Comparison


def to_target_or_planned(comparison: Comparison, evidence: Evidence, objective: Objective) -> SameSteps | None:
    """To the target that was trained to, so that model and trainings speak of one thing; else over the planned run.

    Only over the planned run, where that alone pays for what is paid once.
    """
    short = same_steps(comparison, evidence, objective, planned=False)
    if short is not None and short.ratio is not None and short.ratio.low > 1.0:
        return short
    return same_steps(comparison, evidence, objective)


def timed_pairs(pairs: list[TrainedPair], objective: Objective, *, otherwise: bool) -> list[tuple[float, float]]:
    """Seconds of the baseline and of the plan in each pair of trainings that came to the same end.

    Without a target both are timed as far as the shorter one went: the plan's may have gone on.

    Args:
        otherwise: the plan takes other steps by its class, and is timed by its own. Of one that takes the baseline's,
            the step at which the target is met differs by chance (draws of augmentation, rounding). That is credited
            to neither side: both are taken to the mean of the two, each by the seconds of its own steps.
    """
    goal = objective.target is not None
    alike = [pair for pair in pairs if goal or not otherwise or pair.baseline.steps == pair.best.steps]
    both = [(parts_to(pair.baseline, objective), parts_to(pair.best, objective)) for pair in alike]
    found = []
    for old, new in both:
        if old is None or new is None:
            continue
        if not otherwise:
            steps = (old.steps + new.steps) / 2 if goal else min(old.steps, new.steps)
            old, new = old.planned(steps), new.planned(steps)
        found.append((old.seconds, new.seconds))
    return found


def planned_seconds(found: SameSteps) -> tuple[Estimate | None, Estimate | None]:
    """Seconds of baseline and plan over the planned run, as modelled; their interval is that of the ratio."""
    whole = found.before.seconds
    before = Estimate(value=whole, low=whole, high=whole, n=1)
    return before, by_ratio(before, found.ratio)


def over_planned_run(planned: SameSteps | None, shown: SameSteps | None) -> str:
    """A sentence on the same parts over the planned run, where the figures shown are of a shorter one; else empty."""
    if planned is None or planned.ratio is None or not planned.planned_steps or shown is None or shown.planned_steps:
        return ""
    ratio = f"{planned.ratio.value:.2f}x [{planned.ratio.low:.2f}, {planned.ratio.high:.2f}]"
    return (
        f"; over the planned run of {planned.planned_steps} steps, where what is paid once weighs less, the same parts "
        f"give {planned.before.seconds:.0f} s to {planned.after.seconds:.0f} s: {ratio}"
    )


def by_ratio(seconds: Estimate | None, speedup: Estimate | None) -> Estimate | None:
    """The baseline's seconds over the headline: who divides the two figures of the first screen gets the third."""
    if seconds is None or speedup is None:
        return None
    return seconds.model_copy(
        update={
            "value": seconds.value / speedup.value,
            "low": seconds.low / speedup.high,
            "high": seconds.high / speedup.low,
        }
    )


def goal_of(objective: Objective, pairs: list[TrainedPair]) -> str:
    """How far trainings went, in words."""
    metric = objective.metric
    if metric is None or objective.target is None:
        return "the same number of steps"
    return f"{metric} and some way beyond it" if pairs and all(pair.best.past for pair in pairs) else metric


def detail_of(
    goal: str,
    before: list[float],
    after: list[float],
    trained: Estimate | None,
    headline: Estimate | None,
    level: str | None,
) -> str:
    if trained is None:
        return f"no training of both came to {goal}; the time is modelled from its measured parts"
    seen = ", ".join(f"{b:.1f} s to {a:.1f} s" for b, a in zip(before, after, strict=True))
    told = f"trained to {goal} from start to end, baseline to final plan by seed: {seen}"
    ratio = f"{trained.value:.2f}x [{trained.low:.2f}, {trained.high:.2f}]"
    if headline is None or headline == trained:
        return f"{told}: {ratio}"
    return (
        f"{told}: {ratio}; the speedup is that of a step in interleaved blocks, which takes "
        f"{1 / headline.value:.2f} of the time with what is paid once; the steps are the same because the quality is "
        f"{level or 'unknown'}"
    )
