"""The search over time: the best so far, where the budget went, and when it pays for itself."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, interval, name, number, say
from autoopt_reports.view.trials import WORDS, reason_words, shown_by


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
        self.headline = _headline(self.marks, result)
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


def _headline(marks: tuple[Mark, ...], result: Result) -> Phrase:
    if not marks:
        return say("No trial was finished")
    kept = [mark for mark in marks if mark.verdict == "kept"]
    if not kept:
        return say("No trial of the search was kept")
    text = say("The last gain came after {} of {}", kept[-1].at, number(result.seconds, units.duration, "/seconds"))
    final = interval(result.speedup.throughput, "/speedup/throughput")
    return text + say("; the final comparison gives {} in samples per second", final.phrase) if final else text


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
    runs = result.break_even.runs
    if not result.found:
        return say("The search took {} and found nothing that repays it.", cost)
    if runs is None:
        return say("The search took {}; when it pays for itself: not measured.", cost)
    return say(
        "The search took {} and pays for itself after {} planned runs.",
        cost,
        number(runs, units.plain, "/break_even/runs"),
    )
