"""The document of ``autoopt compare`` as lines for a terminal, a table for a comment, and a page."""

from __future__ import annotations

from collections.abc import Iterator

from autoopt.records import Estimate
from autoopt.records.comparing import Compared, ComparedSide, LedgerEntry
from autoopt_reports.html import Table, lines, tables_page
from autoopt_reports.view import units

ANSWERS = {
    "faster": "faster",
    "not_slower": "not slower",
    "slower": "slower",
    "no_difference": "no difference",
    "undecided": "undecided",
    "failed": "the candidate failed",
    "refused": "refused",
}


def facts(found: Compared) -> list[tuple[str, str]]:
    """Title and text of what is said of the comparison as a whole, the answer first."""
    wanted, at = found.requirement, found.environment
    short_of_time = found.answer == "undecided" and found.learning.level != "undecided"
    reported = [
        ("Answer", f"{ANSWERS[found.answer]}: {found.reason}"),
        ("Speedup of a step", _ratio(found.throughput)),
        (
            f"Speedup of the planned run ({found.planned_steps} steps)",
            _ratio(found.planned_run) if found.planned_steps else None,
        ),
        ("Quality", f"{found.learning.level}: {found.learning.detail}" if found.learning.detail else "not tested"),
        ("Metric", found.metric_note and f"not measured: {found.metric_note}"),
        ("Required", wanted and f"{wanted.text}: {'holds' if wanted.holds else 'does not hold'}"),
        ("Ledger", found.ledger and _ledger(found.ledger)),
        ("Next", "more --budget, or a quieter machine, may decide it" if short_of_time else None),
        ("Machine", at and f"{at.device_name or at.device}, torch {at.torch}, seed {found.seed}"),
        ("Command", found.command),
        *(("Warning", warning) for warning in found.warnings),
    ]
    return [(title, text) for title, text in reported if text]


def _ledger(ledger: LedgerEntry) -> str:
    reached = "none" if ledger.e_value is None else f"{ledger.e_value:.3g}"
    needs = f"error rate {ledger.alpha:.2g}; e-value needed {ledger.needed:.3g}, reached {reached}"
    head = f"; head {ledger.head}" if ledger.head else ""
    return f"comparison {ledger.ask}: {needs}; error rate left {ledger.left:.2g} of {ledger.total:g}{head}"


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return units.NOT_MEASURED
    sure = f"{100 * estimate.confidence:.4g} % CI, " if estimate.confidence is not None else ""
    pairs = "1 pair" if estimate.n == 1 else f"{estimate.n} pairs"
    return f"{estimate.text()} ({sure}{pairs} of processes)"


def rows(found: Compared) -> list[tuple[str, str, str, str]]:
    """Rows of both sides' measurements: title, baseline, candidate, difference; "-" where it was not measured."""

    def row(title: str, name: str, form: units.Formatter = units.plain) -> tuple[str, str, str, str]:
        one, two = (getattr(side, name) for side in (found.baseline, found.candidate))
        before, after = ("-" if value is None else form(value) for value in (one, two))
        if one is None or two is None:
            return title, before, after, "-"
        if form is not units.plain:
            return title, before, after, f"{100 * (two / one - 1):+.1f} %"
        return title, before, after, f"{two - one:+.4g}" if two != one else "0"

    table = [
        row("step", "step_seconds", units.duration),
        row("throughput", "samples_per_second", units.rate),
        row("start to first step", "start_seconds", units.duration),
    ]
    after = f"after {found.learning.steps} steps"
    if found.learning.steps and (found.metric or found.metric_note):
        table.append(row(f"{found.metric or 'metric'} {after}", "metric"))
    if found.loss_batches:
        batches = "1 batch" if found.loss_batches == 1 else f"{found.loss_batches} batches"
        table.append(row(f"training loss {after}, {batches}", "loss"))
    return table


def summary(found: Compared) -> Iterator[str]:
    """Lines for a terminal: the answer first, then the measurements."""
    (_, answer), *others = facts(found)
    yield answer
    for title, before, after, difference in rows(found):
        yield f"  {title}: {before} -> {after}" + (f" ({difference})" if difference != "-" else "")
    yield from lines(others)


def markdown(found: Compared) -> str:
    """A table for a comment on a pull request; what users named is escaped."""
    table = [f"**autoopt compare: {ANSWERS[found.answer]}**", "", "| | |", "| --- | --- |"]
    table += [f"| {_cell(title)} | {_cell(text)} |" for title, text in facts(found)]
    table += ["", f"| | {_cell(_side(found.baseline))} | {_cell(_side(found.candidate))} | difference |"]
    table += ["| --- | --- | --- | --- |"]
    table += [f"| {_cell(title)} | {before} | {after} | {change} |" for title, before, after, change in rows(found)]
    return "\n".join(table) + "\n"


def _side(side: ComparedSide) -> str:
    return f"{side.given} ({side.commit[:12]})" if side.commit else side.given


def _cell(text: str) -> str:
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\|`*_<>[]@#" else c for c in flat)


def page(found: Compared) -> str:
    """One self-contained page."""
    answer = ANSWERS[found.answer]
    heads = ("", _side(found.baseline), _side(found.candidate), "difference")
    measured = "Both sides, measured alternately on the same machine"
    return tables_page(
        found,
        brand="autoopt compare",
        title=f"autoopt compare: {answer}",
        headline=f"{_side(found.candidate)} against {_side(found.baseline)}: {answer}",
        tone="win" if found.answer in ("faster", "not_slower") else "none",
        facts=facts(found),
        tables=[Table("sides", measured, heads, tuple(rows(found)))],
    )
