"""The headline of a run: from the trainings of both plans where there are any, else modelled from measured parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from statistics import fmean

from autoopt.benchmark.target import Parts, mean_seconds
from autoopt.records import Estimate, Headline, Objective
from autoopt.records.headline import AGREEMENT, HeadlineKind, HeadlineSource, differ
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.interleaved import TrainedPair, ratio_of_pairs
from autoopt.search.accept.time_to_target import SameSteps, parts_to, same_steps, step_times
from autoopt.search.compare.comparison import Comparison

Timed = tuple[Parts, Parts]


@dataclass(frozen=True)
class Trained:
    """Trainings of baseline and plan that came to one end, as parts: each side's own seconds and steps.

    ``kind``: what that end is; ``target_missed``: no training of either side reached the target.
    """

    kind: HeadlineKind
    timed: tuple[Timed, ...]
    target_missed: bool = False

    @staticmethod
    def of(pairs: Sequence[TrainedPair], objective: Objective, *, level: str | None, otherwise: bool) -> Trained | None:
        """None where no pair can be compared.

        Args:
            level: quality of the plan's training. Of ``identical`` ones the steps are set equal: they are the same, and
                met the target at another evaluation by chance alone.
            otherwise: the plan takes other steps by its class, so that without a target only equal ends compare.
        """
        if objective.target is None:
            alike = [pair for pair in pairs if not otherwise or pair.baseline.steps == pair.best.steps]
            whole = _over_equal_steps(alike, objective)
            return Trained("same_steps", whole) if whole else None
        reached = [(parts_to(pair.baseline, objective), parts_to(pair.best, objective)) for pair in pairs]
        both = [(old, new) for old, new in reached if old is not None and new is not None]
        if both:
            if level == "identical":
                both = [(old.planned(steps), new.planned(steps)) for old, new, steps in _mean_steps(both)]
            return Trained("to_target", tuple(both))
        short = _over_equal_steps(pairs, objective)
        missed = all(old is None and new is None for old, new in reached)
        return Trained("per_step", short, target_missed=missed) if short else None

    def over(self, steps: int) -> Trained:
        """The same over the steps of the planned run, of which the fixed cost is paid once all the same."""
        return Trained("same_steps", tuple((old.planned(steps), new.planned(steps)) for old, new in self.timed))

    def ratio(self, process_sd: float | None) -> Estimate:
        """Of whole trainings; with one pair the interval is the guess of their scatter alone."""
        return ratio_of_pairs([log(old.seconds / new.seconds) for old, new in self.timed], process_sd)

    def blocks(self, comparison: Comparison) -> Estimate | None:
        """The same ratio with the seconds of a step from interleaved blocks, all else as it was trained."""
        times, steps = step_times(comparison), comparison.estimate
        if times is None or steps is None:
            return None
        told = [(replace(old, step_seconds=times[0]), replace(new, step_seconds=times[1])) for old, new in self.timed]
        value = exp(fmean(log(old.seconds / new.seconds) for old, new in told))
        low, high = value * steps.low / steps.value, value * steps.high / steps.value
        return Estimate(value=value, low=low, high=high, n=steps.n, confidence=steps.confidence)

    def headline(
        self,
        pairs: Sequence[TrainedPair],
        comparison: Comparison,
        process_sd: float | None,
        *,
        source: HeadlineSource = "trained",
        planned: bool = False,
    ) -> Headline:
        """One record of these trainings.

        Args:
            pairs: all that were trained.
            comparison: of blocks of steps, to hold it against.
            source: ``modelled`` over a run of another length than was trained.
            planned: that is the planned run.
        """
        n, equal = len(self.timed), all(old.steps == new.steps for old, new in self.timed)
        seconds = [_mean([parts[side].seconds for parts in self.timed]) for side in (0, 1)]
        steps = [_mean([parts[side].steps for parts in self.timed]) for side in (0, 1)]
        if self.kind == "per_step":
            seconds, steps = [took / count for took, count in zip(seconds, steps, strict=True)], [1.0, 1.0]
        per_step = [log(old.seconds / old.steps * new.steps / new.seconds) for old, new in self.timed]
        counts = [log(old.steps / new.steps) for old, new in self.timed]
        ratio, blocks = self.ratio(process_sd), self.blocks(comparison)
        return Headline(
            kind=self.kind,
            value=seconds[0] / seconds[1],
            low=ratio.low if n > 1 else None,
            high=ratio.high if n > 1 else None,
            n=n,
            step_ratio=_point_or(ratio_of_pairs(per_step, process_sd)),
            steps_ratio=None if equal else _point_or(ratio_of_pairs(counts, process_sd)),
            baseline_seconds=seconds[0],
            best_seconds=seconds[1],
            source=source,
            baseline_steps=steps[0],
            best_steps=steps[1],
            planned=planned,
            pairs=len(pairs),
            interleaved=all(pair.interleaved for pair in pairs),
            target_missed=self.target_missed,
            blocks=blocks,
            agrees=None if blocks is None else differ(ratio.value, blocks.value) <= AGREEMENT,
        )


def headline_of(
    pairs: Sequence[TrainedPair],
    comparison: Comparison,
    evidence: Evidence,
    objective: Objective,
    *,
    level: str | None,
    otherwise: bool,
    process_sd: float | None,
) -> Headline | None:
    """The headline: of the trainings where there are any, else modelled; None where nothing was measured.

    What is paid once may not pay on the way to a target that a short baseline set, and pay over the planned run. That
    run is then put together from the trainings' own parts, and called modelled.

    Args:
        pairs: trainings of the baseline and the final plan.
        comparison: of the two in interleaved blocks.
        evidence: with the trainings of the baseline, and the planned steps.
        level, otherwise: see :meth:`Trained.of`.
        process_sd: see :func:`autoopt.search.accept.interleaved.ratio_of_pairs`.
    """
    trained = Trained.of(pairs, objective, level=level, otherwise=otherwise)
    if trained is None:
        return _modelled(comparison, evidence, objective, level=level, otherwise=otherwise)
    found = trained.headline(pairs, comparison, process_sd)
    steps = evidence.planned_steps
    stands_for_more = objective.target_source != "user" and not otherwise and steps is not None
    if found.value <= 1.0 and stands_for_more and steps is not None and steps > (found.baseline_steps or 0.0):
        planned = trained.over(steps).headline(pairs, comparison, process_sd, source="modelled", planned=True)
        if planned.value > 1.0:
            return planned
    return found


def _modelled(
    comparison: Comparison, evidence: Evidence, objective: Objective, *, level: str | None, otherwise: bool
) -> Headline | None:
    """From blocks of steps and what each side pays once; of a step alone where no length of a run is known."""
    times, speed = step_times(comparison), comparison.estimate
    if times is None or speed is None:
        return None
    found = None if otherwise else to_target_or_planned(comparison, evidence, objective)
    if found is None or found.ratio is None:
        return _record("per_step", speed, times[0], 1.0)
    to_target = objective.has_target and level == "identical" and not found.planned_steps
    kind: HeadlineKind = "to_target" if to_target else "same_steps"
    return _record(kind, found.ratio, found.before.seconds, found.before.steps, planned=bool(found.planned_steps))


def _record(kind: HeadlineKind, ratio: Estimate, seconds: float, steps: float, *, planned: bool = False) -> Headline:
    return Headline(
        kind=kind,
        value=ratio.value,
        low=ratio.low,
        high=ratio.high,
        n=ratio.n,
        step_ratio=ratio,
        baseline_seconds=seconds,
        best_seconds=seconds / ratio.value,
        source="modelled",
        baseline_steps=steps,
        best_steps=steps,
        planned=planned,
    )


def to_target_or_planned(comparison: Comparison, evidence: Evidence, objective: Objective) -> SameSteps | None:
    """To the target that was trained to; over the planned run where that alone pays for what is paid once."""
    short = same_steps(comparison, evidence, objective, planned=False)
    if short is not None and short.ratio is not None and short.ratio.low > 1.0:
        return short
    return same_steps(comparison, evidence, objective)


def seconds_of(headline: Headline | None, trained: Trained | None) -> tuple[Estimate | None, Estimate | None]:
    """Seconds of baseline and plan in a run: those of the headline; None of both where only a step is known.

    Of several pairs each side has the interval of its own trainings. Modelled seconds of the baseline are a point, and
    those of the plan have the interval of the ratio.
    """
    if headline is None or headline.kind == "per_step":
        return None, None
    if headline.source == "trained" and trained is not None and headline.n > 1:
        own = [mean_seconds([parts[side].seconds for parts in trained.timed]) for side in (0, 1)]
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
    ends = {"to_target": _goal(objective, pairs), "same_steps": "the same number of steps"}
    far = ends.get(trained.kind, "as many steps as both came to, short of the target")
    return f"trained to {far} from start to end, baseline to final plan by seed: {seen}"


def _goal(objective: Objective, pairs: Sequence[TrainedPair]) -> str:
    past = bool(pairs) and all(pair.best.past for pair in pairs)
    return f"{objective.metric} and some way beyond it" if past else str(objective.metric)


def _over_equal_steps(pairs: Sequence[TrainedPair], objective: Objective) -> tuple[Timed, ...]:
    """Parts of both sides over as many steps as the shorter training of each pair has."""
    whole = objective.model_copy(update={"target": None})
    known = [(parts_to(pair.baseline, whole), parts_to(pair.best, whole)) for pair in pairs]
    both = [(old, new, min(old.steps, new.steps)) for old, new in known if old is not None and new is not None]
    return tuple((old.planned(steps), new.planned(steps)) for old, new, steps in both)


def _mean_steps(both: Sequence[Timed]) -> list[tuple[Parts, Parts, float]]:
    return [(old, new, (old.steps + new.steps) / 2) for old, new in both]


def _mean(values: Sequence[float]) -> float:
    return exp(fmean(log(value) for value in values))


def _point_or(ratio: Estimate) -> Estimate:
    """The ratio; of one pair without an interval."""
    if ratio.n > 1:
        return ratio
    return Estimate(value=ratio.value, low=ratio.value, high=ratio.value, n=1, confidence=None)
