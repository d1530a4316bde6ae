"""What a result may claim, and the sentences of the first screen: each is made from the fields that it speaks of.

The figures are those of one record, ``speedup.headline``; where a run broke off before it, those of the throughput.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoopt.records import Headline, Result, StopReason
from autoopt_reports.view import units
from autoopt_reports.view.quality import both, quality_view
from autoopt_reports.view.text import Interval, Number, Phrase, interval, name, number, numbers, say
from autoopt_reports.view.trials import UNMEASURED

Status = Literal["faster", "point", "unsure", "none", "slower", "unmeasured"]
AT = "/speedup/headline"


@dataclass(frozen=True, slots=True)
class Claim:
    """The figure of a result.

    Args:
        status: what may be said of it; ``point``: one pair of trainings, which has no interval.
        of_what: what it is a speedup of, in words.
        value: None where nothing was measured.
        interval: None of a point.
        seconds: of baseline and final plan, that divide to the value; None without a record.
        record: of which all this is; None where there is none.
    """

    status: Status
    of_what: str
    value: Number | None
    interval: Interval | None
    seconds: tuple[Number, ...] | None
    record: Headline | None

    @property
    def gain(self) -> bool:
        """Whether the plan is to be trained with: a gain was shown, or one pair of trainings measured one."""
        above = self.value is not None and self.value.value is not None and self.value.value > 1.0
        return self.status == "faster" or (self.status == "point" and above)


def claim_of(result: Result) -> Claim:
    record = result.speedup.headline
    if record is None:
        shown = interval(result.speedup.throughput, "/speedup/throughput")
        found: Status = "none" if not result.found else "unmeasured" if shown is None else _by(shown)
        return Claim(found, "in samples per second", shown.value if shown else None, shown, None, None)
    shown = interval(record.estimate, AT)
    value = shown.value if shown is not None else number(record.value, units.ratio, f"{AT}/value")
    seconds = numbers(record, AT, units.duration, "baseline_seconds", "best_seconds")
    of_what = record.of_what
    if record.kind == "to_target" and not result.objective.has_target:
        of_what = "for the same steps"
    if record.kind == "same_steps" and _planned(record.baseline_steps, result):
        of_what = "over the planned run"
    status: Status = "point" if shown is None else _by(shown)
    return Claim(status if result.found else "none", of_what, value, shown, seconds, record)


def _by(shown: Interval) -> Status:
    low, high = shown.low.value or 0.0, shown.high.value or 0.0
    return "faster" if low > 1 else "slower" if high < 1 else "unsure"


def _planned(steps: float | None, result: Result) -> bool:
    planned = result.workload.max_steps
    return planned is not None and steps is not None and steps >= planned


def headline_phrase(result: Result) -> Phrase:
    claim = claim_of(result)
    if claim.status == "none":
        if result.stop.reason is StopReason.INTERRUPTED:
            return say("Stopped before a gain was verified")
        if result.fitted:
            return say("Made to fit in memory; no safe gain found beyond that")
        untried = all(trial.verdict in UNMEASURED for trial in result.trials)
        return say("Nothing was tried" if untried else "No safe gain found")
    if claim.value is None:
        changes = len(result.found)
        shown = number(changes, units.count, "/best/plan/changes", how="count")
        kept = say("{} change" if changes == 1 else "{} changes", shown)
        return say("{} kept, but the final plan was not measured against the baseline", kept)
    words = {"faster": "{} faster ", "slower": "Slower: {} "}.get(claim.status, "No gain shown: {} ")
    if claim.status == "point" and claim.gain:
        words = "{} faster "
    of_what = claim.of_what
    if claim.status == "point":
        whole = claim.record is not None and claim.record.whole
        of_what = "in one pair of whole runs" if whole else f"{of_what}, in one pair of trainings"
    text = say(words + of_what, claim.value)
    if claim.record is not None and claim.record.target_missed:
        text = text + "; the target was not reached in this budget"
    return text


def qualifier_phrases(result: Result) -> tuple[Phrase, ...]:
    """How sure and how safe, right under the headline."""
    claim = claim_of(result)
    if claim.value is None or claim.status == "none":
        return ()
    pieces: list[Phrase] = []
    shown, record = claim.interval, claim.record
    if shown is not None and shown.confidence is not None:
        pieces.append(say("{} CI {}–{}×", shown.confidence, shown.low, shown.high))
        # one session knows nothing of another machine or another day
        pieces.append(say("this machine, this hour"))
    if claim.status == "point":
        pieces.append(say("no interval"))
    if claim.status == "unsure":
        pieces.append(say("the interval includes no gain"))
    if record is not None and record.source == "modelled":
        pieces.append(say("modelled from measured parts"))
    pieces.append(say("verified end to end" if result.speedup.end_to_end_verified else "not verified"))
    pieces.append(say(quality_view(result).short))
    before, after = both(result, units.bytes_, "peak_memory_bytes")
    if not before.missing and not after.missing:
        pieces.append(say("peak memory {} → {}", before, after))
    return tuple(pieces)


def target_phrase(result: Result) -> Phrase:
    """``accuracy at least 0.93``, or the step up to which both sides were trained where there is no value to reach."""
    record, objective = result.speedup.headline, result.objective
    over, at = result.speedup.planned_steps, "/speedup/planned_steps"
    if over is not None and claim_of(result).status == "faster":
        return say("the end of its {} planned steps", number(over, units.count, at))
    same_steps = record is not None and record.kind == "same_steps"
    if objective.metric is not None and objective.target is not None and not same_steps:
        bound = "at least" if objective.mode == "max" else "at most"
        target = number(objective.target, units.plain, "/objective/target")
        return say("{} " + bound + " {}", name(objective.metric, 60), target)
    planned, at = result.workload.max_steps, "/baseline/trained_steps"
    steps: float | None = result.baseline.trained_steps
    if record is not None and record.baseline_steps is not None and same_steps:
        steps, at = record.baseline_steps, f"{AT}/baseline_steps"
    if steps is None or _planned(steps, result):
        return say("its planned end")
    step = number(steps, units.count, at)
    return say("step {}", step) if planned is None else say(
        "step {} of {}", step, number(planned, units.count, "/workload/max_steps")
    )  # fmt: skip


def run_phrases(result: Result) -> Iterator[Phrase]:
    """Seconds of both, the factors that they are made of, and whether trainings and blocks say the same."""
    claim, objective = claim_of(result), result.objective
    record = claim.record
    of_baseline = objective.has_target and objective.target_source == "baseline"
    not_users = [say("That target is what the baseline reached in its share of the budget.")] if of_baseline else []
    if record is None or claim.seconds is None or claim.status == "none":
        yield _baseline_run(result)
        yield from not_users
        return
    before, after = claim.seconds
    text = say("Your {} run to {} takes {}", before, target_phrase(result), after)
    if record.kind == "per_step":
        text = say("A training step takes {} instead of {}", after, before)
    yield text + _made_from(record) + "."
    if record.kind != "same_steps":
        yield from not_users
    if record.steps_ratio is not None:
        parts = []
        for ratio, field in ((record.step_ratio, "step_ratio"), (record.steps_ratio, "steps_ratio")):
            known = interval(ratio, f"{AT}/{field}") if ratio.confidence is not None else None
            parts.append(known.phrase if known else say("{}", number(ratio.value, units.ratio, f"{AT}/{field}/value")))
        counts = numbers(record, AT, units.count, "baseline_steps", "best_steps")
        yield say("Two factors: seconds a step {}, " + steps_name(record) + " {} ({} → {}).", *parts, *counts)
    if record.agrees is False and record.blocks is not None:
        yield say(
            "Trainings and interleaved blocks disagree: the trainings give {}, the blocks {}, a difference above {}. "
            "The trainings count. Possible causes: other programs' load, start-up, evaluation, caches.",
            number(record.value, units.ratio, f"{AT}/value"),
            number(record.blocks.value, units.ratio, f"{AT}/blocks/value"),
            number(record.margin, units.percent, f"{AT}/margin"),
        )


def _baseline_run(result: Result) -> Phrase:
    before = result.baseline.time_to_target_seconds
    if before is None:
        return say("Time to target of the baseline: not measured.")
    at = "/baseline/time_to_target_seconds"
    baseline = number(before.value, units.duration, f"{at}/value")
    if before.low == before.high:
        return say("Your run takes {} to {}.", baseline, target_phrase(result))
    bounds = numbers(before, at, units.duration, "low", "high")
    return say("Your run takes {} [{} to {}] to {}.", baseline, *bounds, target_phrase(result))


def _made_from(record: Headline) -> Phrase:
    if record.source == "modelled" and record.pairs:
        return say(" (estimated from measured parts; the trainings were shorter)")
    if record.source == "modelled":
        return say(" (estimated from measured parts; the two were not trained)")
    pairs = number(record.n, units.count, f"{AT}/n")
    how = "trained interleaved" if record.interleaved else "trained one after the other"
    words = " ({} pair, " if record.n == 1 else " ({} pairs, "
    if record.whole:
        return say(words + "whole runs of the untouched and the patched script)", pairs)
    return say(words + how + ", start and evaluations included)", pairs)


def steps_name(record: Headline) -> str:
    """Steps that two sides differ in: those to the target, or what rounding is charged as."""
    return "steps to target" if record.kind == "to_target" else "steps, with those that rounding costs"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that makes the result more or less believable. ``open``: not measured."""

    label: str
    level: Literal["good", "caution", "open"]
    text: Phrase


def verified_check(result: Result) -> Check:
    """Whether the result is verified from end to end, and on what that rests or why it is not."""
    record, what = result.speedup.headline, "End to end"
    if record is None:
        text = say("The final plan was not run again from start to end.")
    elif not result.speedup.end_to_end_verified:
        doubts = record.doubts(control_failed=result.noise.failed(result.objective.min_gain))
        text = say("Not verified: " + "; ".join(doubts) + ".") if doubts else say("Not verified.")
    else:
        text = say(
            "{} pairs of whole runs of the untouched and the patched script, interleaved"
            if record.whole
            else "{} pairs of trainings of baseline and final plan, interleaved from start to end",
            number(record.n, units.count, f"{AT}/n"),
        )
        if record.blocks is not None:
            blocks = number(record.blocks.value, units.ratio, f"{AT}/blocks/value")
            margin = number(record.margin, units.percent, f"{AT}/margin")
            text = text + say("; steps in interleaved blocks agree ({}, within {})", blocks, margin)
        text = text + "."
    if result.patch is not None and result.patch.diff and not (record is not None and record.whole):
        return Check(what, "caution", text + " The patched script itself was not run to its end.")
    verified = record is not None and result.speedup.end_to_end_verified
    return Check(what, "good" if verified else "caution", text)


def repeats_check(result: Result) -> Check | None:
    """Whether the figure rests on repeats, and on how many; None where no change was kept."""
    claim, what = claim_of(result), "Repeats"
    if claim.status == "none":
        return None
    if claim.value is None:
        return Check(what, "open", say("The final plan was not compared with the baseline."))
    record = claim.record
    runs = "whole runs" if record is not None and record.whole else "trainings"
    if claim.interval is None:
        return Check(what, "caution", say(f"One pair of {runs}, so no interval."))
    repeats = claim.interval.n
    if record is not None and record.source == "trained":
        return Check(what, "good", say(f"The interval comes from {{}} pairs of {runs}.", repeats))
    if (repeats.value or 0) < 2:
        words = "{} independent repeat: the interval does not contain the variance between runs."
        return Check(what, "caution", say(words, repeats))
    return Check(what, "good", say("The interval comes from {} independent repeats.", repeats))
