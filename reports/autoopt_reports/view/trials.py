"""The whole trial table, each verdict a list of its own."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Interval, Name, Number, Phrase, change_name, interval, name, number, say


@dataclass(frozen=True, slots=True)
class TrialRow:
    id: int
    place: int
    round: Number
    label: Name
    predicted: Interval | None
    throughput: Interval | None
    again: Interval | None
    time_to_target: Interval | None
    quality: str
    memory: Number
    seconds: Number
    reason: Name | None
    log: Name | None


@dataclass(frozen=True, slots=True)
class TrialGroup:
    """``measured``: whether its trials ran, so that columns of measurements make sense."""

    key: str
    title: str
    meaning: str
    mark: str
    count: Number
    measured: bool
    rows: tuple[TrialRow, ...]


GROUPS: tuple[tuple[Verdict, str, str, str], ...] = (
    (Verdict.KEPT, "Kept", "the gain is beyond doubt and quality held", "✓"),
    (Verdict.NO_GAIN, "No gain", "measured, and not faster by more than the smallest gain asked for", "="),
    (Verdict.HARMFUL, "Harmful", "measured to be slower", "↓"),
    (Verdict.QUALITY_LOST, "Quality lost", "did not learn as the baseline does", "≠"),
    (Verdict.INCONCLUSIVE, "Inconclusive", "time was up before the interval decided", "?"),
    (Verdict.FAILED, "Failed", "did not come to an end", "✗"),
    (Verdict.NOT_APPLICABLE, "Not applicable", "cannot be used with this workload or machine", "–"),
    (Verdict.NOT_TRIED, "Not tried", "left out, with the reason", "○"),
)
UNMEASURED = {Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED}


def account_phrase(result: Result) -> Phrase:
    """Where the rows are that every speed and ratio is computed from; empty for a document without an account."""
    account = result.account
    if account is None or not account.blocks:
        return Phrase()
    return say(
        "Every speed and ratio is computed from {} blocks of {} processes, {} of training: each block is one line of "
        "account.csv in the run directory, and its column evidence names the trial.",
        number(account.blocks, units.count, "/account/blocks"),
        number(account.processes, units.count, "/account/processes"),
        number(account.seconds, units.duration, "/account/seconds"),
    )


def trial_groups(result: Result) -> tuple[TrialGroup, ...]:
    groups = []
    for verdict, title, meaning, mark in GROUPS:
        rows = tuple(_row(place, trial) for place, trial in enumerate(result.trials) if trial.verdict is verdict)
        shown = Number(units.count(len(rows)), len(rows), ("/trials",), f"count_{verdict.value}")
        groups.append(TrialGroup(verdict.value, title, meaning, mark, shown, verdict not in UNMEASURED, rows))
    return tuple(groups)


def _row(place: int, trial: Trial) -> TrialRow:
    at = f"/trials/{place}"
    return TrialRow(
        id=trial.id,
        place=place,
        round=number(trial.round, units.count, f"{at}/round"),
        label=change_name(trial.strategy, trial.setting, trial.companions),
        predicted=interval(trial.predicted, f"{at}/predicted"),
        throughput=interval(trial.throughput, f"{at}/throughput"),
        again=interval(trial.measured_again, f"{at}/measured_again"),
        time_to_target=interval(trial.time_to_target, f"{at}/time_to_target"),
        quality=quality_word(trial),
        memory=number(trial.peak_memory_bytes, units.bytes_, f"{at}/peak_memory_bytes"),
        seconds=number(trial.seconds, units.duration, f"{at}/seconds"),
        reason=name(reason_words(trial.reason)) if trial.reason else None,
        log=name(trial.log, 120) if trial.log else None,
    )


_KINDS = {
    "out_of_memory": "out of memory",
    "timeout": "timed out",
    "crashed": "crashed",
    "error": "error",
    "not_finite": "not finite",
}


def reason_words(reason: str) -> str:
    """``out_of_memory: asked for 9 GiB`` as ``out of memory: asked for 9 GiB``."""
    kind, colon, rest = reason.partition(":")
    return f"{_KINDS.get(kind, kind)}{colon}{rest}"


def quality_word(trial: Trial) -> str:
    quality = trial.quality
    if quality is None or quality.passed is None or quality.method == "not_tested":
        return "not tested"
    return "held" if quality.passed else "lost"
