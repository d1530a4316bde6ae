"""The search over time: the best so far, where the budget went, and when it pays for itself."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, interval, name, number, say
from autoopt_reports.view.trials import GROUPS, reason_words

MOST_STRATEGIES = 12
"""Rows of the table of what was spent; the others are one row."""
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
class SpentRow:
    label: Name | str
    seconds: Number
    share: Number


@dataclass(frozen=True, slots=True)
class DecidedRow:
    """A strategy over all its trials. ``verdict``: in words; ``by``: what decided it, or how far it came."""

    label: Name
    verdict: str
    by: Name


@dataclass(frozen=True, slots=True)
class SearchSection:
    headline: Phrase
    budget_headline: Phrase
    decided_headline: Phrase
    decided: tuple[DecidedRow, ...]
    marks: tuple[Mark, ...]
    end: Number
    spent: tuple[SpentRow, ...]
    more: str
    break_even: Phrase


def search_view(result: Result) -> SearchSection:
    marks = _marks(result)
    spent = _spent(result)
    used = number(result.seconds, units.duration, "/seconds")
    budget = number(result.budget_seconds, units.duration, "/budget_seconds")
    most = say("{} of a budget of {} were used", used, budget)
    if len(spent) > 1:
        most = most + say("; the most on {} ({})", spent[0].label, spent[0].share)
    decided = tuple(
        DecidedRow(
            name(row.strategy, 40), _WORDS[row.verdict] if row.verdict else "undecided", name(reason_words(row.by))
        )
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


def _spent(result: Result) -> tuple[SpentRow, ...]:
    """Seconds by what they were spent on, the largest first; of a run that does not tell, by strategy."""
    if not result.spent:
        return _by_strategy(result)
    rows = [_row(result, row.on, row.seconds, f"/spent/{index}/seconds", "") for index, row in enumerate(result.spent)]
    return tuple(sorted(rows, key=lambda row: -(row.seconds.value or 0.0)))


def _by_strategy(result: Result) -> tuple[SpentRow, ...]:
    """Seconds of each strategy's trials; what no trial accounts for is benchmarks, checks and starts."""
    totals: dict[str, tuple[float, list[str]]] = {}
    for index, trial in enumerate(result.trials):
        if trial.seconds:
            seconds, paths = totals.setdefault(trial.strategy, (0.0, []))
            paths.append(f"/trials/{index}/seconds")
            totals[trial.strategy] = (seconds + trial.seconds, paths)
    ranked = sorted(totals.items(), key=lambda item: -item[1][0])
    rows = [
        _row(result, name(strategy, 40), seconds, "/trials", f"seconds_of:{list(totals).index(strategy)}")
        for strategy, (seconds, _) in ranked[:MOST_STRATEGIES]
    ]
    others = sum(seconds for _, (seconds, _) in ranked[MOST_STRATEGIES:])
    if others:
        rows.append(_row(result, "other strategies", others, "/trials", f"seconds_beyond:{MOST_STRATEGIES}"))
    rest = result.seconds - sum(seconds for seconds, _ in totals.values())
    if rest > 0.005 * result.seconds:
        rows.append(_row(result, "benchmark, simplify, ablation, verification", rest, "/trials", "seconds_outside"))
    return tuple(sorted(rows, key=lambda row: -(row.seconds.value or 0.0)))


def _row(result: Result, label: Name | str, seconds: float, path: str, how: str) -> SpentRow:
    share = seconds / result.seconds if result.seconds else 0.0
    return SpentRow(
        label,
        Number(units.duration(seconds), seconds, (path,), how),
        Number(units.percent(share), share, (path, "/seconds"), f"share_{how}" if how else "quotient"),
    )


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
