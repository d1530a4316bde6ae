"""The trials, each verdict a list of its own; predictions next to results; the search over time and its budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from autoopt.records import Estimate, EstimateKind, Result, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, interval, intervals, name, number, numbers, say


class TrialRow:
    def __init__(self, place: int, trial: Trial) -> None:
        at, quality = f"/trials/{place}", trial.quality
        self.id, self.place = trial.id, place
        self.round = number(trial.round, units.count, f"{at}/round")
        self.label = change_name(trial.strategy, trial.setting, trial.companions)
        ratios = ("predicted", "throughput", "measured_again", "time_to_target")
        self.predicted, self.throughput, self.again, self.time_to_target = intervals(trial, at, *ratios)
        self.quality = "not tested"
        if quality is not None and quality.passed is not None and quality.method != "not_tested":
            self.quality = "held" if quality.passed else "lost"
        self.memory, self.seconds = numbers(trial, at, peak_memory_bytes=units.bytes_, seconds=units.duration)
        self.reason = name(reason_words(trial.reason)) if trial.reason else None
        self.log = name(trial.log, 120) if trial.log else None


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
    (Verdict.KEPT, "Kept", "its interval shows a gain, and quality held", "✓"),
    (Verdict.NO_GAIN, "No gain", "measured, and not faster by more than the smallest gain asked for", "="),
    (Verdict.HARMFUL, "Harmful", "measured to be slower", "↓"),
    (Verdict.QUALITY_LOST, "Quality lost", "did not learn as the baseline does", "≠"),
    (Verdict.INCONCLUSIVE, "Inconclusive", "time was up before the interval decided", "?"),
    (Verdict.FAILED, "Failed", "did not come to an end", "✗"),
    (Verdict.NOT_APPLICABLE, "Not applicable", "cannot be used with this workload or machine", "–"),
    (Verdict.NOT_TRIED, "Not tried", "left out, with the reason", "○"),
)
UNMEASURED = (Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED)
WORDS = {verdict: title.lower() for verdict, title, _, _ in GROUPS}


def account_phrase(result: Result) -> Phrase:
    """Where the rows are that every speed and ratio is computed from; empty for a document without an account."""
    account = result.account
    if account is None or not account.blocks:
        return Phrase()
    return say(
        "Every speed and ratio is computed from {} blocks of {} processes, {} of training: each block is one line of "
        "account.csv in the run directory, and its column evidence names the trial.",
        *numbers(account, "/account", units.count, "blocks", "processes", seconds=units.duration),
    )


def trial_groups(result: Result) -> tuple[TrialGroup, ...]:
    groups = []
    for verdict, title, meaning, mark in GROUPS:
        rows = tuple(TrialRow(place, trial) for place, trial in enumerate(result.trials) if trial.verdict is verdict)
        shown = number(len(rows), units.count, "/trials", how=f"count_{verdict.value}")
        groups.append(TrialGroup(verdict.value, title, meaning, mark, shown, verdict not in UNMEASURED, rows))
    return tuple(groups)


_KINDS = {"out_of_memory": "out of memory", "timeout": "timed out", "not_finite": "not finite"}


def reason_words(reason: str) -> str:
    """``out_of_memory: asked for 9 GiB`` as ``out of memory: asked for 9 GiB``."""
    kind, colon, rest = reason.partition(":")
    return f"{_KINDS.get(kind, kind)}{colon}{rest}"


def shown_by(trial: Trial) -> str:
    """The field of a trial that holds its figure: whole runs show no speed of steps."""
    return "throughput" if trial.throughput is not None else "time_to_target"


class PredictionRow:
    """``held``: the two intervals touch: the result does not contradict the prediction."""

    def __init__(self, place: int, trial: Trial, p: Estimate, r: Estimate, field: str) -> None:
        at = f"/trials/{place}"
        self.trial, self.place, self.verdict = trial.id, place, trial.verdict.value
        self.label = change_name(trial.strategy, trial.setting, trial.companions, 80)
        self.predicted, self.realized = interval(p, f"{at}/predicted"), interval(r, f"{at}/{field}")
        self.believed = interval(trial.believed, f"{at}/believed")
        # As the reader sees them: of a declared prediction its value alone.
        low, high = (p.value, p.value) if p.kind is EstimateKind.DECLARED else (p.low, p.high)
        self.held = low <= r.high and r.low <= high
        miss = math.exp(abs(math.log(r.value / p.value))) - 1  # as a factor less one
        self.miss = number(miss, units.percent, f"{at}/predicted/value", f"{at}/{field}/value", how="miss")


@dataclass(frozen=True, slots=True)
class Predictions:
    headline: Phrase
    rows: tuple[PredictionRow, ...]


def predictions_view(result: Result) -> Predictions | None:
    rows = []
    for index, trial in enumerate(result.trials):
        field = shown_by(trial)
        p, r = trial.predicted, getattr(trial, field)
        if p is None or r is None or p.kind is EstimateKind.BOUND or min(p.value, r.value) <= 0:
            continue  # a bound predicts nothing that could be held against it
        rows.append(PredictionRow(index, trial, p, r, field))
    if not rows:
        return None
    good = sum(row.held for row in rows)
    middle = median(row.miss.value or 0.0 for row in rows)
    text = say(
        "{} of {} predictions agree with their result; the median miss is {}",
        number(good, units.count, "/trials", how="count_held"),
        number(len(rows), units.count, "/trials", how="count_predicted"),
        number(middle, units.percent, "/trials", how="median_miss"),
    )
    return Predictions(text, tuple(rows))


@dataclass(frozen=True, slots=True)
class Mark:
    """One trial on the time line. ``best``: the product of the kept ratios up to and with it."""

    trial: int
    label: Name
    verdict: str
    at: Number
    best: Number


class SearchSection:
    """The search over time. The same document gives the same.

    ``decided``: of each strategy its verdict over all its trials, and what decided it, or how far it came.
    ``spent``: what the budget went on, seconds and share.
    """

    def __init__(self, result: Result) -> None:
        self.end = number(result.seconds, units.duration, "/seconds")
        budget = number(result.budget_seconds, units.duration, "/budget_seconds")
        self.spent = _spent(result)
        self.budget_headline = say("{} of a budget of {} were used", self.end, budget)
        if len(self.spent) > 1:
            self.budget_headline += say("; the most on {} ({})", self.spent[0][0], self.spent[0][2])
        self.marks = _marks(result)
        kept = [mark for mark in self.marks if mark.verdict == "kept"]
        self.headline = say("No trial of the search was kept" if self.marks else "No trial was finished")
        if kept:
            self.headline = say("The last gain came after {} of {}", kept[-1].at, self.end)
            final = interval(result.speedup.throughput, "/speedup/throughput")
            if final is not None:
                self.headline += say("; the final comparison gives {} in samples per second", final.phrase)
        settled, every = sum(row.verdict is not None for row in result.decided), len(result.decided)
        self.decided_headline = say(
            "{} of {} candidates that were measured are decided",
            number(settled, units.count, "/decided", how="count_decided"),
            number(every, units.count, "/decided", how="count"),
        )
        self.decided = tuple(
            (name(row.strategy, 40), WORDS[row.verdict] if row.verdict else "undecided", name(reason_words(row.by)))
            for row in result.decided
        )
        self.more = result.more_budget
        self.break_even = _break_even(result)


def _marks(result: Result) -> tuple[Mark, ...]:
    timed = [(i, t) for i, t in enumerate(result.trials) if t.finished_at is not None]
    timed.sort(key=lambda item: (item[1].finished_at or 0.0, item[1].id))
    best, paths, marks = 1.0, [], []
    for index, trial in timed:
        field = shown_by(trial)
        shown = getattr(trial, field)
        if trial.verdict is Verdict.KEPT and shown is not None:
            best *= shown.value
            paths.append(f"/trials/{index}/{field}/value")
        marks.append(
            Mark(
                trial.id,
                change_name(trial.strategy, trial.setting, trial.companions, 60),
                trial.verdict.value,
                number(trial.finished_at, units.duration, f"/trials/{index}/finished_at"),
                Number(units.ratio(best), best, tuple(paths), "product"),
            )
        )
    return tuple(marks)


def _spent(result: Result) -> tuple[tuple[str, Number, Number], ...]:
    """Seconds by what they were spent on, the largest first."""
    rows = []
    for index, row in enumerate(result.spent):
        path, share = f"/spent/{index}/seconds", row.seconds / result.seconds if result.seconds else 0.0
        of_all = number(share, units.percent, path, "/seconds", how="quotient")
        rows.append((row.on, number(row.seconds, units.duration, path), of_all))
    return tuple(sorted(rows, key=lambda row: -(row[1].value or 0.0)))


def _break_even(result: Result) -> Phrase:
    cost = number(result.break_even.search_seconds, units.duration, "/break_even/search_seconds")
    runs = number(result.break_even.runs, units.plain, "/break_even/runs")
    if not result.found:
        return say("The search took {} and found nothing that repays it.", cost)
    if runs.missing:
        return say("The search took {}; when it pays for itself: not measured.", cost)
    return say("The search took {} and pays for itself after {} planned runs.", cost, runs)
