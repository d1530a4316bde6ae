"""The speedup of the time to target, put together from trained steps and interleaved seconds; and the headline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, hypot, log, log1p
from statistics import fmean, geometric_mean
from typing import Any

from autoopt.benchmark.target import Parts, time_ratio
from autoopt.records import Estimate, Headline, Objective, Quality
from autoopt.records.headline import AGREEMENT, HeadlineKind, HeadlineSource, differ
from autoopt.records.messages import WHOLE_RUN, TrainingRun
from autoopt.search.accept.evidence import Evidence, Pairs, TrainedPair, length_scatter
from autoopt.search.accept.metric import parts_to
from autoopt.search.accept.trainings import SCATTER, SCATTER_DOF, ratio_of_pairs
from autoopt.search.compare.comparison import Comparison, Decision, Side
from autoopt.search.compare.sequential_test import ALPHA, as_estimate
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel

Timed = tuple[Parts, Parts]


def step_times(comparison: Comparison) -> tuple[float, float] | None:
    """Seconds of a step of both; the candidate's follows from the paired ratio. None where too little was measured."""
    before, after = comparison.incumbent, comparison.candidate
    if comparison.estimate is None or not before.rate:
        return None
    if not before.per_step or not after.per_step:
        return None
    return before.per_step / before.rate, after.per_step / (before.rate * comparison.estimate.value)


def price_of(quality: Quality | None) -> float:
    """The factor on a plan's steps that its rounding costs; 1 where nothing is charged."""
    return 1.0 if quality is None or quality.step_penalty is None else max(quality.step_penalty.value, 1.0)


def less_penalty(comparison: Comparison, quality: Quality | None) -> Comparison:
    """The comparison with the speedup that is left where the steps that rounding costs are charged to it."""
    speed, penalty = comparison.estimate, quality.step_penalty if quality is not None else None
    if speed is None or penalty is None:
        return comparison
    net = {"value": speed.value / penalty.value, "low": speed.low / penalty.high, "high": speed.high / penalty.low}
    return comparison.model_copy(update={"estimate": speed.model_copy(update=net)})


SEEDS = BetweenProcess(sd=SCATTER, dof=SCATTER_DOF, most=1.0)
"""Guess of how much the log ratio of two times to target scatters over seeds."""


@dataclass(frozen=True)
class TrainedRatio:
    """The speedup of the time to target over seeds, with bounds that hold after every further seed.

    ``ratios``: log speedup of each, by the steps that it took; ``reach``: half-width (log) of the throughput's
    interval, which all share.
    """

    ratios: tuple[float, ...]
    reach: float

    @cached_property
    def _level(self) -> TwoLevel:
        return TwoLevel(self.ratios, [0.0] * len(self.ratios), SEEDS)

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Bounds of the log speedup that hold at all times at once, but for a chance of ``alpha``."""
        value = self._level.value
        low, high = self._level.sequence(alpha)
        return value - math.hypot(value - low, self.reach), value + math.hypot(high - value, self.reach)

    @property
    def estimate(self) -> Estimate:
        """As a speedup, with the bounds of 95 %."""
        return as_estimate(self._level, self.bounds(ALPHA), 1 - ALPHA)


def trained_ratio(comparison: Comparison, evidence: Evidence) -> TrainedRatio | None:
    """From the seconds that each side needed, seed by seed; None with fewer than two seeds where both arrived.

    Trainings alternately have seconds of their own. Where there were none, the steps that each side needed are taken at
    the seconds of a step in the comparison, whose interval all seeds then share. A target that was set to what a short
    baseline reached stands for a longer plan: steps are then scaled to the planned run, whose fixed cost is paid once.
    """
    interleaved = [(pair.baseline, pair.best) for pair in evidence.interleaved_pairs if pair.interleaved]
    measured = _log_ratios(interleaved, (None, None), evidence)
    if len(measured) >= 2:
        return TrainedRatio(measured, 0.0)
    times = step_times(comparison)
    if times is None or comparison.estimate is None:
        return None
    modelled = _log_ratios(evidence.paired_with_incumbent(), times, evidence)
    reach = math.log(comparison.estimate.high / comparison.estimate.low) / 2
    return TrainedRatio(modelled, reach) if len(modelled) >= 2 else None


def _log_ratios(pairs: Pairs, step_seconds: tuple[float | None, float | None], evidence: Evidence) -> tuple[float, ...]:
    """Log speedup to the target of each seed where both arrived, with these seconds of a step if given."""
    ratios = []
    for old, new in pairs:
        left, right = (_parts(run, evidence, step_seconds[n]) for n, run in enumerate((old, new)))
        if left and right:
            stretch = _stretch(left, evidence)
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
    ratio: Estimate
    planned_steps: int | None


def same_steps(comparison: Comparison, evidence: Evidence, *, planned: bool = True) -> SameSteps | None:
    """Where both take the same steps by their class: what the candidate pays once, and each step faster.

    None where nothing says how long a run is: neither a run that reached the target nor a planned length. ``planned``:
    over the planned run, where a target that a short baseline reached stands for it; else to that target.
    """
    times = step_times(comparison)
    if times is None:
        return None
    runs = evidence.incumbent_runs or evidence.baseline_runs
    reached = [p for run in runs if (p := parts_to(run, evidence.objective, times[0])) is not None]
    if reached:
        stretch = _stretch(reached[0], evidence) if planned else 1.0
        one = reached[0].planned(reached[0].steps * stretch)
        over = evidence.planned_steps if stretch > 1.0 else None
    elif evidence.planned_steps:
        one, over = Parts(_fixed(comparison.incumbent), times[0], float(evidence.planned_steps)), evidence.planned_steps
    else:
        return None
    one = _between(_with_imports(one, evidence), evidence, comparison.incumbent)
    extra = _fixed(comparison.candidate) - _fixed(comparison.incumbent) if _started(comparison) else 0.0
    other = replace(
        _other(one, comparison, evidence),
        fixed_seconds=max(one.fixed_seconds + extra, 0.0),
        step_seconds=times[1],
    )
    return SameSteps(one, other, time_ratio(one, other, comparison.estimate), over)


def _started(comparison: Comparison) -> bool:
    """Whether both sides' starts were seen: a process that switches between plans shows that of one of them alone."""
    return bool(comparison.incumbent.fixed_seconds and comparison.candidate.fixed_seconds)


def _other(one: Parts, comparison: Comparison, evidence: Evidence) -> Parts:
    """The incumbent's parts with what comes between steps as the candidate has it."""
    epoch = _epoch(comparison.candidate, one.steps_per_epoch) if _started(comparison) else one.epoch_seconds
    evaluating = evidence.evaluation_ratio  # of the candidate over the incumbent, by itself or in trainings
    if evaluating in (None, 1.0):
        pairs = [(pair.baseline, pair.best) for pair in evidence.interleaved_pairs if pair.interleaved]
        each = [[run.evaluation_seconds / (run.evaluations or math.inf) for run in pair] for pair in pairs]
        logs = [math.log(after / before) for before, after in each if before > 0 and after > 0]
        evaluating = math.exp(sum(logs) / len(logs)) if logs else 1.0
    return replace(
        one,
        evaluation_seconds=one.evaluation_seconds * evaluating,
        checkpoint_seconds=one.checkpoint_seconds * (evidence.checkpoint_ratio or 1.0),
        epoch_seconds=epoch,
    )


def _beyond(trained: Parts, whole: Parts) -> Parts:
    """Parts of a whole run of what a training that was cut short does not hold already in its own."""
    if trained.evaluate_every is not None:
        whole = replace(whole, evaluation_seconds=trained.evaluation_seconds)
    if trained.steps > (whole.steps_per_epoch or math.inf):
        whole = replace(whole, epoch_seconds=0.0)
    if trained.steps >= (whole.checkpoint_every or math.inf):
        whole = replace(whole, checkpoint_seconds=0.0)
    return whole


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
        known |= {"evaluation_seconds": run.evaluation_seconds or 0.0, "evaluate_every": run.evaluate_every}
    else:  # their evaluations hold the checkpoints, which come between steps as they do
        known |= {"checkpoint_every": None}
    return replace(one, **known)


def _epoch(side: Side, steps_per_epoch: int | None) -> float:
    """Seconds of an epoch's start that the blocks of a side do not hold already."""
    if side.startup is None or side.startup.epoch_seconds is None or not steps_per_epoch:
        return 0.0
    return max(side.startup.epoch_seconds - side.stage_seconds.get("epoch", 0.0) * steps_per_epoch, 0.0)


def same_steps_ratio(comparison: Comparison, evidence: Evidence) -> Estimate | None:
    """The ratio of :func:`same_steps` over the planned run; None where that says nothing."""
    found = same_steps(comparison, evidence)
    return found.ratio if found is not None else None


def by_whole_run(comparison: Comparison, evidence: Evidence) -> Comparison:
    """The comparison, accepted where the whole run is faster for certain though its steps are not: what shortens
    evaluations or the starts of epochs, which blocks of steps do not hold.

    Savings that chance alone could show do not count. A start and an epoch's start are single readings, which scatter.
    So a start is never credited, an epoch's start only where it is halved, and evaluations only where both were
    measured on the same weights.
    """
    if comparison.decision not in (Decision.REJECT, Decision.INCONCLUSIVE, Decision.HARMFUL):
        return comparison
    found = same_steps(comparison, evidence)
    if found is None or comparison.estimate is None:
        return comparison
    before, after = found.before, found.after
    halved = after.epoch_seconds <= before.epoch_seconds / 2
    measured = evidence.evaluation_ratio not in (None, 1.0)
    after = replace(
        after,
        fixed_seconds=max(before.fixed_seconds, after.fixed_seconds),
        epoch_seconds=after.epoch_seconds if halved else max(before.epoch_seconds, after.epoch_seconds),
        evaluation_seconds=max(after.evaluation_seconds, 0.0 if measured else before.evaluation_seconds),
    )
    ratio = time_ratio(before, after, comparison.estimate)
    if ratio.low < 1 + evidence.objective.min_gain:
        return comparison
    of_steps = before.steps * before.step_seconds - after.steps * after.step_seconds
    if before.seconds - after.seconds <= of_steps:
        return comparison  # what is saved are steps alone, which the comparison has ruled on
    text = f"the whole run takes {after.seconds:.3g} s where it took {before.seconds:.3g} s"
    reason = f"{comparison.reason}; {text}"
    return comparison.model_copy(update={"decision": Decision.ACCEPT, "reason": reason})


def _stretch(reached: Parts, evidence: Evidence) -> float:
    if evidence.objective.users_target is not None or not evidence.planned_steps:
        return 1.0
    return max(evidence.planned_steps / max(reached.steps, 1.0), 1.0)


def _fixed(side: Side) -> float:
    """Seconds that a run pays once. The dearest process of the side: the first one to compile found nothing cached."""
    return max(side.fixed_seconds, default=0.0)


@dataclass(frozen=True)
class Trained:
    """Trainings of baseline and plan that came to one end, as parts: each side's own seconds and steps.

    ``kind``: what that end is; ``target_missed``: no training of either side reached the target; ``time_sliced``: they
    are whole runs that took turns. ``fresh``: of each, whether no other was from the same seed. ``evaluation``: of the
    steps to the target (log), those to one evaluation more: by chance a side is there so much earlier or later.
    ``length``: of the ratio, what that does where both sides are there at once. ``process_sd``: see
    :func:`~autoopt.search.accept.trainings.ratio_of_pairs`.
    """

    kind: HeadlineKind
    timed: tuple[Timed, ...]
    process_sd: float | None
    target_missed: bool = False
    time_sliced: bool = False
    fresh: tuple[bool, ...] = ()
    evaluation: float = 0.0
    length: float = 0.0

    @staticmethod
    def of(pairs: Sequence[TrainedPair], evidence: Evidence, quality: Quality | None) -> Trained | None:
        """None where no pair can be compared.

        Args:
            evidence: with the class of the plan: one that takes other steps compares at equal ends alone.
            quality: of the plan's training. Of ``identical`` ones the steps are set equal: they are the same, and met
                the target at another evaluation by chance alone. Over equal steps those that rounding costs are added.
        """
        objective, process_sd = evidence.objective, evidence.noise.process_sd
        time_sliced = bool(pairs) and all(pair.time_sliced for pair in pairs)
        whole_runs = bool(pairs) and all(pair.whole for pair in pairs)
        if objective.target is None or (whole_runs and objective.users_target is None):
            otherwise = evidence.risk.trains_otherwise
            alike = [pair for pair in pairs if not otherwise or pair.baseline.steps == pair.best.steps]
            whole = tuple(
                (old, new.planned(price_of(quality) * new.steps)) for old, new in _over_equal_steps(alike, evidence)
            )
            return Trained("same_steps", whole, process_sd, time_sliced=time_sliced) if whole else None
        reached = _of_both(pairs, evidence)
        there = [(pair, old, new) for pair, (old, new) in zip(pairs, reached, strict=True) if old and new]
        both = [(old, new) for _, old, new in there]
        if both:
            curves = [pair.curves for pair, _, _ in there]
            fresh = tuple(curve not in curves[:place] for place, curve in enumerate(curves))
            evaluation = max(log1p(pair.baseline.curve.spacing / old.steps) for pair, old, _ in there)
            if quality is not None and quality.level == "identical":
                mean = [(old.steps + new.steps) / 2 for old, new in both]
                both = [(old.planned(steps), new.planned(steps)) for (old, new), steps in zip(both, mean, strict=True)]
            length = length_scatter([pair for pair, _, _ in there], evidence.run) if whole_runs else 0.0
            return Trained("to_target", tuple(both), process_sd, False, time_sliced, fresh, evaluation, length)
        short = _over_equal_steps(pairs, evidence)
        missed = all(old is None and new is None for old, new in reached)
        return Trained("per_step", short, process_sd, target_missed=missed) if short else None

    def over(self, steps: int, quality: Quality | None, comparison: Comparison, evidence: Evidence) -> Trained:
        """The same over the steps of the planned run, with what the trainings did not come to: of that the fixed cost
        is paid once all the same, and evaluations, checkpoints and epochs' starts are as they were measured apart."""
        more = price_of(quality) * steps
        timed = []
        for old, new in self.timed:
            before = _beyond(old, _between(old, evidence, comparison.incumbent))
            whole = _other(_between(new, evidence, comparison.incumbent), comparison, evidence)
            timed.append((before.planned(steps), _beyond(new, whole).planned(more)))
        return Trained("same_steps", tuple(timed), self.process_sd, time_sliced=self.time_sliced)

    def _of_pairs(self, logs: list[float], length: float = 0.0) -> Estimate:
        return ratio_of_pairs(logs, self.process_sd, time_sliced=self.time_sliced, length=length)

    @property
    def ratio(self) -> Estimate:
        """Of whole trainings; with one pair the interval is the guess of their scatter alone. Where the sides took
        other steps, these were a matter of chance as well, which further runs from the same seed do not lessen."""
        logs = [log(old.seconds / new.seconds) for old, new in self.timed]
        if self.kind != "to_target" or all(old.steps == new.steps for old, new in self.timed):
            return self._of_pairs(logs, self.length)
        value, speed, steps = exp(fmean(logs)), self.step_ratio, self.steps_ratio
        low = hypot(log(speed.value / speed.low), log(steps.value / steps.low))
        high = hypot(log(speed.high / speed.value), log(steps.high / steps.value))
        return Estimate(value=value, low=value * exp(-low), high=value * exp(high), n=len(logs))

    @property
    def step_ratio(self) -> Estimate:
        """Of the seconds of a step."""
        return self._of_pairs([log(old.seconds / old.steps * new.steps / new.seconds) for old, new in self.timed])

    @property
    def steps_ratio(self) -> Estimate:
        """Of the steps that each side took."""
        logs = [log(old.steps / new.steps) for old, new in self.timed]
        if self.kind != "to_target":
            return self._of_pairs(logs)
        return ratio_of_pairs([each for each, fresh in zip(logs, self.fresh, strict=True) if fresh], self.evaluation)

    def blocks(self, comparison: Comparison) -> Estimate | None:
        """The same ratio with the seconds of a step from interleaved blocks, all else as it was trained."""
        times, steps = step_times(comparison), comparison.estimate
        if times is None or steps is None:
            return None
        both = [(replace(old, step_seconds=times[0]), replace(new, step_seconds=times[1])) for old, new in self.timed]
        value = exp(fmean(log(old.seconds / new.seconds) for old, new in both))
        low, high = value * steps.low / steps.value, value * steps.high / steps.value
        return Estimate(value=value, low=low, high=high, n=steps.n, confidence=steps.confidence)

    def headline(
        self, pairs: Sequence[TrainedPair], comparison: Comparison, source: HeadlineSource = "trained"
    ) -> Headline:
        """One record of these trainings, of all ``pairs`` that were trained, held against blocks of steps; ``modelled``
        over the planned run, which is of another length than was trained."""
        n, equal = len(self.timed), all(old.steps == new.steps for old, new in self.timed)
        seconds = [geometric_mean([parts[side].seconds for parts in self.timed]) for side in (0, 1)]
        steps = [geometric_mean([parts[side].steps for parts in self.timed]) for side in (0, 1)]
        if self.kind == "per_step":
            seconds, steps = [took / count for took, count in zip(seconds, steps, strict=True)], [1.0, 1.0]
        whole = all(pair.whole for pair in pairs)  # of which the steps' seconds are not known apart from the rest
        ratio, blocks = self.ratio, None if whole else self.blocks(comparison)
        return Headline(
            kind=self.kind,
            value=seconds[0] / seconds[1],
            low=ratio.low if n > 1 else None,
            high=ratio.high if n > 1 else None,
            n=n,
            step_ratio=_point_or(self.step_ratio),
            steps_ratio=None if equal else _point_or(self.steps_ratio),
            baseline_seconds=seconds[0],
            best_seconds=seconds[1],
            source=source,
            baseline_steps=steps[0],
            best_steps=steps[1],
            planned=source == "modelled",
            pairs=len(pairs),
            interleaved=all(pair.interleaved for pair in pairs),
            whole=whole,
            target_missed=self.target_missed,
            blocks=blocks,
            agrees=None if blocks is None else differ(ratio.value, blocks.value) <= AGREEMENT,
        )


def headline_of(
    pairs: Sequence[TrainedPair], comparison: Comparison, evidence: Evidence, quality: Quality | None
) -> Headline | None:
    """The headline: of the trainings where there are any, else modelled; None where nothing was measured.

    Trainings that were cut short of the planned run stand for it: of that their start is another share, and it has
    evaluations that they did not come to. It is put together from the trainings' own parts, and called modelled. So is
    it where what is paid once does not pay on the way to a target that a short baseline set. ``quality``: see
    :meth:`Trained.of`.
    """
    trained = Trained.of(pairs, evidence, quality)
    if trained is None:
        return _modelled(comparison, evidence, quality)
    found, steps = trained.headline(pairs, comparison), evidence.planned_steps
    stands_for_more = evidence.objective.users_target is None and not evidence.risk.trains_otherwise and not found.whole
    if stands_for_more and steps is not None and steps > (found.baseline_steps or 0.0):
        run = trained.over(steps, quality, comparison, evidence)
        planned = run.headline(pairs, comparison, "modelled")
        if found.kind == "same_steps" or found.value <= 1.0 < planned.value:
            return planned
    return found


def _modelled(comparison: Comparison, evidence: Evidence, quality: Quality | None) -> Headline | None:
    """From blocks of steps and what each side pays once; of a step alone where no length of a run is known. A run is
    taken to the target that was trained to, and over the planned run where that alone pays for the start."""
    times, speed, net = step_times(comparison), comparison.estimate, less_penalty(comparison, quality)
    if times is None or speed is None:
        return None
    found = None
    if not evidence.risk.trains_otherwise:
        found = same_steps(net, evidence, planned=False)
        if found is None or found.ratio.low <= 1.0:
            found = same_steps(net, evidence)
    if found is None:
        kind: HeadlineKind = "per_step"
        ratio, seconds, steps, planned = speed, times[0], 1.0, False
    else:
        identical = quality is not None and quality.level == "identical"
        ratio, seconds, steps = found.ratio, found.before.seconds, found.before.steps
        planned = bool(found.planned_steps)
        kind = "to_target" if evidence.objective.has_target and identical and not planned else "same_steps"
    price = price_of(quality) if kind == "same_steps" else 1.0
    return Headline(
        kind=kind,
        value=ratio.value,
        low=ratio.low,
        high=ratio.high,
        n=ratio.n,
        step_ratio=ratio.model_copy(update={name: getattr(ratio, name) * price for name in ("value", "low", "high")}),
        steps_ratio=None if price == 1.0 else Estimate(value=1 / price, low=1 / price, high=1 / price, n=ratio.n),
        baseline_seconds=seconds,
        best_seconds=seconds / ratio.value,
        source="modelled",
        baseline_steps=steps,
        best_steps=steps * price,
        planned=planned,
    )


def seconds_of(headline: Headline | None, trained: Trained | None) -> tuple[Estimate | None, Estimate | None]:
    """Seconds of baseline and plan in a run: those of the headline; None of both where only a step is known.

    Of several pairs each side has the interval of its own trainings. Modelled seconds of the baseline are a point, and
    those of the plan have the interval of the ratio.
    """
    if headline is None or headline.kind == "per_step":
        return None, None
    if headline.source == "trained" and trained is not None and headline.n > 1:
        own = [ratio_of_pairs([log(parts[side].seconds) for parts in trained.timed]) for side in (0, 1)]
        return own[0], own[1]
    before, after = headline.baseline_seconds, headline.best_seconds
    low, high = (before / bound if bound else after for bound in (headline.high, headline.low))
    return (
        Estimate(value=before, low=before, high=before, n=headline.n, confidence=None),
        Estimate(value=after, low=low, high=high, n=headline.n, confidence=headline.low and headline.confidence),
    )


def detail_of(pairs: Sequence[TrainedPair], objective: Objective, trained: Trained | None) -> str:
    """Seconds of each pair of trainings, in words."""
    if trained is None:
        return "no training of both; the time is modelled from its measured parts"
    seen = ", ".join(f"{old.seconds:.1f} s to {new.seconds:.1f} s" for old, new in trained.timed)
    if all(pair.whole for pair in pairs):
        return f"whole runs of the script, untouched to patched: {seen}"
    past = bool(pairs) and all(pair.best.past for pair in pairs)
    goal = f"{objective.metric} and some way beyond it" if past else str(objective.metric)
    ends = {"to_target": goal, "same_steps": "the same number of steps"}
    far = ends.get(trained.kind, "as many steps as both came to, short of the target")
    return f"trained to {far} from start to end, baseline to final plan by seed: {seen}"


def _over_equal_steps(pairs: Sequence[TrainedPair], evidence: Evidence) -> tuple[Timed, ...]:
    """Parts of both sides over as many steps as the shorter training of each pair has."""
    endless = evidence.objective.model_copy(update={"target": None})
    known = _of_both(pairs, evidence.model_copy(update={"objective": endless}))
    both = [(old, new, min(old.steps, new.steps)) for old, new in known if old is not None and new is not None]
    return tuple((old.planned(steps), new.planned(steps)) for old, new, steps in both)


def _of_both(pairs: Sequence[TrainedPair], evidence: Evidence) -> list[tuple[Parts | None, Parts | None]]:
    return [(_parts(pair.baseline, evidence), _parts(pair.best, evidence)) for pair in pairs]


def _parts(run: TrainingRun, evidence: Evidence, step_seconds: float | None = None) -> Parts | None:
    """The parts of a run to the target, with what a script imports: a trial's process begins with that at hand."""
    found = parts_to(run, evidence.objective, step_seconds)
    return found if found is None or run.stopped == WHOLE_RUN else _with_imports(found, evidence)


def _with_imports(one: Parts, evidence: Evidence) -> Parts:
    seconds = evidence.run.imports_seconds if evidence.run is not None else None
    return replace(one, fixed_seconds=one.fixed_seconds + (seconds or 0.0))


def _point_or(ratio: Estimate) -> Estimate:
    """The ratio; of one pair without an interval."""
    if ratio.n > 1:
        return ratio
    return Estimate(value=ratio.value, low=ratio.value, high=ratio.value, n=1, confidence=None)
