"""The speedup of the time to target, put together from trained steps and interleaved seconds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoopt.benchmark.target import Parts, parts, time_ratio
from autoopt.records import Estimate, Objective
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import Evidence
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel


def step_times(comparison: Comparison) -> tuple[float, float] | None:
    """Seconds of a step of incumbent and candidate; the candidate's follows from the paired ratio.

    None where the comparison measured too little.
    """
    before, after = comparison.incumbent, comparison.candidate
    if comparison.estimate is None or not before.rate:
        return None
    if not before.per_step or not after.per_step:
        return None
    return before.per_step / before.rate, after.per_step / (before.rate * comparison.estimate.value)


def parts_to(run: TrainingRun, objective: Objective, step_seconds: float | None = None) -> Parts | None:
    """The parts of a run to the objective's target; None where it did not reach it."""
    return parts(run, objective.target, objective.mode, step_seconds)


SEEDS = BetweenProcess(sd=0.1, dof=3.0, most=1.0)
"""Guess of how much the log ratio of two times to target scatters over seeds: a tenth, worth three seeds."""


@dataclass(frozen=True)
class TrainedRatio:
    """The speedup of the time to target over seeds, with bounds that hold after every further seed.

    Args:
        ratios: log speedup of each seed, by the steps that it took.
        reach: half-width (log) of the throughput's interval, which all seeds share.
    """

    ratios: tuple[float, ...]
    reach: float

    @cached_property
    def _level(self) -> TwoLevel:
        return TwoLevel(self.ratios, [0.0] * len(self.ratios), SEEDS)

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Bounds of the log speedup that hold at all looks at once, but for a chance of ``alpha``."""
        value = self._level.value
        low, high = self._level.sequence(alpha)
        return value - math.hypot(value - low, self.reach), value + math.hypot(high - value, self.reach)

    @property
    def estimate(self) -> Estimate:
        """As a speedup, with the bounds of 95 %."""
        low, high = self.bounds(0.05)
        value = math.exp(self._level.value)
        return Estimate(value=value, low=math.exp(low), high=math.exp(high), n=len(self.ratios), confidence=0.95)


def trained_ratio(comparison: Comparison, evidence: Evidence, objective: Objective) -> TrainedRatio | None:
    """From the seconds that each side needed, seed by seed; None with fewer than two seeds where both arrived.

    Trainings in turns have seconds of their own. Where there were none, the steps that each side needed are taken at
    the seconds of a step in the comparison, whose interval all seeds then share. A target that was set to what a short
    baseline reached stands for a longer plan: steps are then scaled to the planned run, whose fixed cost is paid once.
    """
    beside = [(pair.baseline, pair.best) for pair in evidence.in_turns if pair.interleaved]
    measured = _log_ratios(beside, (None, None), evidence, objective)
    if len(measured) >= 2:
        return TrainedRatio(measured, 0.0)
    times = step_times(comparison)
    if times is None or comparison.estimate is None:
        return None
    modelled = _log_ratios(evidence.paired_with_incumbent(), times, evidence, objective)
    reach = math.log(comparison.estimate.high / comparison.estimate.low) / 2
    return TrainedRatio(modelled, reach) if len(modelled) >= 2 else None


def _log_ratios(
    pairs: Sequence[tuple[TrainingRun, TrainingRun]],
    step_seconds: tuple[float | None, float | None],
    evidence: Evidence,
    objective: Objective,
) -> tuple[float, ...]:
    """Log speedup to the target of each seed where both arrived.

    Args:
        step_seconds: of incumbent and candidate in place of the runs' own.
    """
    ratios = []
    for old, new in pairs:
        left, right = parts_to(old, objective, step_seconds[0]), parts_to(new, objective, step_seconds[1])
        if left and right:
            stretch = _stretch(left, evidence, objective)
            before, after = left.planned(left.steps * stretch), right.planned(right.steps * stretch)
            ratios.append(math.log(before.seconds / after.seconds))
    return tuple(ratios)


@dataclass(frozen=True)
class SameSteps:
    """Two plans that take the same steps: what each pays once, its steps and its evaluations.

    ``planned_steps``: of the planned run that both are taken over; None where that is a run to the target.
    """

    before: Parts
    after: Parts
    ratio: Estimate | None
    planned_steps: int | None


def same_steps(
    comparison: Comparison, evidence: Evidence, objective: Objective, *, planned: bool = True
) -> SameSteps | None:
    """Where both take the same steps by their class: what the candidate pays once, and each step faster.

    Args:
        planned: over the planned run, where a target that a short baseline reached stands for it; else to that target.

    Returns:
        None where nothing says how long a run is: neither a run that reached the target nor a planned length.
    """
    times = step_times(comparison)
    if times is None:
        return None
    runs = evidence.incumbent_runs or evidence.baseline_runs
    reached = [p for run in runs if (p := parts_to(run, objective, times[0])) is not None]
    if reached:
        stretch = _stretch(reached[0], evidence, objective) if planned else 1.0
        one = reached[0].planned(reached[0].steps * stretch)
        over = evidence.planned_steps if stretch > 1.0 else None
    elif evidence.planned_steps:
        one, over = Parts(_fixed(comparison.incumbent), times[0], float(evidence.planned_steps)), evidence.planned_steps
    else:
        return None
    one = _between(one, evidence, comparison.incumbent)
    extra = _fixed(comparison.candidate) - _fixed(comparison.incumbent)
    other = replace(
        one,
        fixed_seconds=max(one.fixed_seconds + extra, 0.0),
        step_seconds=times[1],
        evaluation_seconds=one.evaluation_seconds * _evaluating(evidence),
        epoch_seconds=_epoch(comparison.candidate, one.steps_per_epoch),
    )
    return SameSteps(one, other, time_ratio([one], [other], comparison.estimate, seed_noise=False), over)


def _between(one: Parts, evidence: Evidence, side: Side) -> Parts:
    """The parts with what comes between steps, where a watched run has shown it and trainings have not."""
    run = evidence.run
    if run is None:
        return one
    known: dict[str, Any] = {
        "steps_per_epoch": run.steps_per_epoch,
        "epoch_seconds": _epoch(side, run.steps_per_epoch),
        "checkpoint_seconds": run.checkpoint_seconds or 0.0,
        "checkpoint_every": run.checkpoint_every,
    }
    if one.evaluate_every is None:
        seconds = (run.evaluation_seconds or 0.0) * evidence.evaluation_of_incumbent
        known |= {"evaluation_seconds": seconds, "evaluate_every": run.evaluate_every}
    else:  # their evaluations hold the checkpoints, which come between steps as they do
        known |= {"checkpoint_every": None}
    start = run.imports_seconds or 0.0
    return replace(one, fixed_seconds=one.fixed_seconds + start, **known)


def _epoch(side: Side, steps_per_epoch: int | None) -> float:
    """Seconds of an epoch's start that the blocks of a side do not hold already."""
    if side.startup is None or side.startup.epoch_seconds is None or not steps_per_epoch:
        return 0.0
    return max(side.startup.epoch_seconds - side.stage_seconds.get("epoch", 0.0) * steps_per_epoch, 0.0)


def _evaluating(evidence: Evidence) -> float:
    """Seconds of an evaluation of the candidate over one of the incumbent, as measured by itself or in trainings."""
    if evidence.evaluation_ratio not in (None, 1.0):
        return evidence.evaluation_ratio
    pairs = [(pair.baseline, pair.best) for pair in evidence.in_turns if pair.interleaved]
    seconds = [[run.evaluation_seconds / run.evaluations if run.evaluations else 0.0 for run in pair] for pair in pairs]
    logs = [math.log(after / before) for before, after in seconds if before > 0 and after > 0]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def same_steps_ratio(comparison: Comparison, evidence: Evidence, objective: Objective) -> Estimate | None:
    """The ratio of :func:`same_steps` over the planned run; None where that says nothing."""
    found = same_steps(comparison, evidence, objective)
    return found.ratio if found is not None else None


def by_whole_run(comparison: Comparison, evidence: Evidence, objective: Objective) -> Comparison:
    """The comparison, accepted where the whole run is faster for certain though its steps are not.

    That is what shortens evaluations or the starts of epochs: blocks of steps do not hold them.
    """
    if comparison.decision not in (Decision.REJECT, Decision.INCONCLUSIVE, Decision.HARMFUL):
        return comparison
    found = same_steps(comparison, evidence, objective)
    if found is None or comparison.estimate is None:
        return comparison
    before, after = found.before, _without_chance(found, evidence)
    ratio = time_ratio([before], [after], comparison.estimate, seed_noise=False)
    if ratio.low < 1 + objective.min_gain:
        return comparison
    of_steps = before.steps * before.step_seconds - after.steps * after.step_seconds
    if before.seconds - after.seconds <= of_steps:
        return comparison  # what is saved are steps alone, which the comparison has ruled on
    told = f"the whole run takes {after.seconds:.3g} s where it took {before.seconds:.3g} s"
    reason = f"{comparison.reason}; {told}"
    return comparison.model_copy(update={"decision": Decision.ACCEPT, "reason": reason})


def _without_chance(found: SameSteps, evidence: Evidence) -> Parts:
    """The candidate's parts without savings that chance alone could show.

    A start and an epoch's start are single readings, which scatter. So a start is never credited, an epoch's start only
    where it is halved, and evaluations only where both were measured on the same weights.
    """
    before, after = found.before, found.after
    halved = after.epoch_seconds <= before.epoch_seconds / 2
    measured = evidence.evaluation_ratio not in (None, 1.0)
    return replace(
        after,
        fixed_seconds=max(before.fixed_seconds, after.fixed_seconds),
        epoch_seconds=after.epoch_seconds if halved else max(before.epoch_seconds, after.epoch_seconds),
        evaluation_seconds=after.evaluation_seconds
        if measured
        else max(before.evaluation_seconds, after.evaluation_seconds),
    )


def _stretch(reached: Parts, evidence: Evidence, objective: Objective) -> float:
    if objective.target_source == "user" or not evidence.planned_steps:
        return 1.0
    return max(evidence.planned_steps / max(reached.steps, 1.0), 1.0)


def _fixed(side: Side) -> float:
    """Seconds that a run pays once. The dearest process of the side: the first one to compile found nothing cached."""
    return max(side.fixed_seconds, default=0.0)
