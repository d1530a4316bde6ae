"""The headline of a run, one record of which everything on the first screen is, and sessions that measured it again."""

from __future__ import annotations

import math
from typing import Literal

from autoopt.records.base import Estimate
from autoopt.records.record import Record

HeadlineKind = Literal["to_target", "same_steps", "per_step"]
HeadlineSource = Literal["trained", "modelled"]

AGREEMENT = 0.1
"""Margin of agreement, in log speedup: two trainings of one program on a shared machine differ by about a tenth, so
that blocks and trainings that differ by less do not contradict each other."""


class Headline(Record):
    """The final plan against the baseline, as one record.

    ``kind``: ``to_target``, each side with its own seconds and steps to the target; ``same_steps``, both over as many
    steps, and the plan over those more that its rounding is charged as; ``per_step``, the seconds of one step.
    ``value``: ``baseline_seconds`` over ``best_seconds``, which are geometric means over pairs of trainings. ``low``,
    ``high``: None with one pair of trainings, which is a point. ``n``: pairs of trainings; without any the
    repeats of the blocks it rests on. ``step_ratio``: of the seconds a step, start and evaluations included;
    ``steps_ratio``: of the steps that each side needed or is charged, None where both take the same. Their product is
    ``value``. An estimate of one pair has its value as both ends, and no confidence.
    ``source``: ``trained`` from start to end, or ``modelled`` from measured parts.

    ``baseline_steps``, ``best_steps``: of these seconds; 1 of ``per_step``. ``planned``: they are those of the planned
    run. ``pairs``: trained in all, also those that did not end alike; ``interleaved``: all of them were; ``whole``:
    they are whole runs of the untouched and the patched script, nothing listening.
    ``target_missed``: no training of either side reached the target. ``blocks``: the same speedup with the seconds of a
    step from interleaved blocks; ``agrees``: it lies within ``margin`` of ``value``, in log speedup; None where one of
    the two was not measured.
    """

    kind: HeadlineKind
    value: float
    low: float | None = None
    high: float | None = None
    confidence: float = 0.95
    n: int
    step_ratio: Estimate
    steps_ratio: Estimate | None = None
    baseline_seconds: float
    best_seconds: float
    source: HeadlineSource
    baseline_steps: float | None = None
    best_steps: float | None = None
    planned: bool = False
    pairs: int = 0
    interleaved: bool = True
    whole: bool = False
    target_missed: bool = False
    blocks: Estimate | None = None
    agrees: bool | None = None
    margin: float = AGREEMENT

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isclose(self.value, self.baseline_seconds / self.best_seconds, rel_tol=1e-6):
            seconds = f"{self.baseline_seconds} s over {self.best_seconds} s"
            raise ValueError(f"the headline is {self.value}, and its seconds give another figure: {seconds}")
        if (self.low is None) != (self.high is None) or (self.source == "trained" and self.n < 2 and self.low):
            raise ValueError(f"an interval has two ends and two pairs of trainings at least, got {self}")

    @property
    def estimate(self) -> Estimate | None:
        """With its interval; None of a point."""
        if self.low is None or self.high is None:
            return None
        return Estimate(value=self.value, low=self.low, high=self.high, n=self.n, confidence=self.confidence)

    @property
    def of_what(self) -> str:
        """What it is a speedup of, after the word "faster"."""
        if self.kind == "per_step":
            return "a step"
        if self.planned:
            return "over the planned run"
        if self.kind == "to_target":
            return "to target"
        if self.whole:
            return "in whole runs"
        charged = (self.best_steps or 0.0) > 1.005 * (self.baseline_steps or self.best_steps or 0.0)
        return "for the same steps and those that rounding costs" if charged else "for the same steps"

    def doubts(self, *, control_failed: bool) -> tuple[str, ...]:
        """Why it is not verified end to end, a clause each; empty where it is.

        Args:
            control_failed: the baseline against itself is not 1.00 (:meth:`autoopt.records.Noise.failed`).
        """
        if self.source == "modelled":
            why = "the trainings were shorter than the planned run" if self.pairs else "the two were not trained"
            return (f"the figure is estimated from measured parts: {why}",)
        found = []
        if self.target_missed:
            found.append("no training reached the target")
        if not self.interleaved:
            found.append("the trainings ran one after the other, not interleaved")
        if self.n < 2:
            what = "whole runs" if self.whole else "trainings"
            found.append(f"one pair of {what} does not show how much {what} vary")
        if self.pairs > self.n or (self.kind == "per_step" and not self.target_missed):
            missed = self.pairs if self.kind == "per_step" else self.pairs - self.n
            found.append(f"in {missed} of {self.pairs} pairs the two trainings did not come to the same end")
        if self.agrees is None and not self.whole:
            found.append("there are no interleaved blocks of steps to compare with")
        elif self.agrees is False:
            found.append("trainings and interleaved blocks disagree")
        if self.low is not None and self.low <= 1.0:
            found.append("the interval includes no gain")
        if control_failed:
            found.append("the control failed: the baseline against itself is not 1.00")
        return tuple(found)

    @property
    def text(self) -> str:
        """``1.45x faster to target [1.17, 1.80], 2 pairs``: one short line for headers, logs and clients."""
        shown = f"{self.value:.2f}x {'faster ' if self.value >= 1.0 else ''}{self.of_what}"
        if self.low is not None and self.high is not None:  # rounded outwards, as everywhere in a report
            low, high = math.floor(100 * self.low + 1e-9) / 100, math.ceil(100 * self.high - 1e-9) / 100
            shown += f" [{low:.2f}, {high:.2f}]"
        what = "whole runs" if self.whole else "trainings"
        pairs = f"one pair of {what}" if self.n == 1 else f"{self.n} pairs"
        shown += ", modelled" if self.source == "modelled" else ""
        shown += f", {pairs}" if self.pairs or self.source == "trained" else ""
        return f"{shown}; target not reached" if self.target_missed else shown


def differ(one: float, other: float) -> float:
    """How far two speedups lie apart, in log speedup."""
    return abs(math.log(one / other))


SessionKind = Literal["to_target", "per_step", "whole_runs"]


class Session(Record):
    """One session of measurements on one machine.

    ``began``, ``ended``: ISO 8601, UTC. ``value``: speedup, geometric mean over its ``n`` repeats: pairs of trainings
    to the target, pairs of whole runs of a script, or pairs of processes where only a step was measured. ``run``: the
    session of the run itself.
    """

    began: str
    ended: str
    kind: SessionKind
    value: float
    n: int
    run: bool = False


class Sessions(Record):
    """sessions.json of a run directory: when its result was measured, and what each session said."""

    schema_version: Literal[1] = 1
    sessions: tuple[Session, ...] = ()
