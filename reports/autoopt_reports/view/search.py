"""The search over time: the best so far, where the budget went, and when it pays for itself."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, interval, name, number, say
from autoopt_reports.view.trials import GROUPS, reason_words

_WORDS = {verdict: title.lower() for verdict, title, _, _ in GROUPS}


@dataclass(frozen=True, slots=True)
class Mark:
    """One trial on the time line. ``best``: the product of the kept ratios up to and with it."""

    trial: int
    label: Name
    verdict: str
    at: Number
    best: Number


@dataclass(frozen=True, slots=True)
class SearchSection:
    """``decided``: of each strategy its verdict over all its trials, and what decided it, or how far it came.

    ``spent``: what the budget went on, seconds and share.
    """

    headline: Phrase
    budget_headline: Phrase
    decided_headline: Phrase
    decided: tuple[tuple[Name, str, Name], ...]
    marks: tuple[Mark, ...]
    end: Number
    spent: tuple[tuple[str, Number, Number], ...]
    more: str
    break_even: Phrase


def search_view(result: Result) -> SearchSection:
    marks = _marks(result)
    spent = _spent(result)
    used = number(result.seconds, units.duration, "/seconds")
    budget = number(result.budget_seconds, units.duration, "/budget_seconds")
    most = say("{} of a budget of {} were used", used, budget)
    if len(spent) > 1:
        most = most + say("; the most on {} ({})", spent[0][0], spent[0][2])
    decided = tuple(
        (name(row.strategy, 40), _WORDS[row.verdict] if row.verdict else "undecided", name(reason_words(row.by)))
        for row in result.decided
    )
    return SearchSection(
        _headline(marks, result),
        most,
        _decided_headline(result),
        decided,
        marks,
        used,
        spent,
        result.more_budget,
        _break_even(result),
    )


def _decided_headline(result: Result) -> Phrase:
    """How many of the candidates were decided; a run that does not tell has no such sentence."""
    if not result.decided:
        return say("")
    settled = sum(row.verdict is not None for row in result.decided)
    every = len(result.decided)
    return say(
        "{} of {} candidates that were measured are decided",
        Number(units.count(settled), settled, ("/decided",), "count_decided"),
        Number(units.count(every), every, ("/decided",), "count"),
    )


def _marks(result: Result) -> tuple[Mark, ...]:
    timed = [(i, t) for i, t in enumerate(result.trials) if t.finished_at is not None]
    timed.sort(key=lambda item: (item[1].finished_at or 0.0, item[1].id))
    best, paths, marks = 1.0, [], []
    for index, trial in timed:
        if trial.verdict is Verdict.KEPT and trial.throughput is not None:
            best *= trial.throughput.value
            paths.append(f"/trials/{index}/throughput/value")
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
        of_all = Number(units.percent(share), share, (path, "/seconds"), "quotient")
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
