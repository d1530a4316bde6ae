"""The document of ``autoopt compare`` as lines for a terminal, a table for a comment, and a page."""

from __future__ import annotations

from collections.abc import Iterator

from autoopt.records import Estimate
from autoopt.records.comparing import Compared, ComparedSide, LedgerEntry, Requirement
from autoopt_reports.html import Table, tables_page

ANSWERS = {
    "faster": "faster",
    "not_slower": "not slower",
    "slower": "slower",
    "no_difference": "no difference",
    "undecided": "undecided",
    "failed": "the candidate failed",
    "refused": "refused",
}


def summary(found: Compared) -> Iterator[str]:
    """Lines for a terminal: the answer first."""
    yield f"{ANSWERS[found.answer]}: {found.reason}"
    yield (
        f"quality: {found.learning.level}; {found.learning.detail}" if found.learning.detail else "quality: not tested"
    )
    for title, before, after, difference in rows(found):
        yield f"  {title}: {before} -> {after}" + (f" ({difference})" if difference != "-" else "")
    if found.requirement is not None:
        yield f"required {_required(found.requirement)}"
    if found.ledger is not None:
        yield f"ledger, {_ledger(found.ledger)}"
    if found.answer == "undecided" and found.learning.level != "undecided":
        yield "more --budget, or a quieter machine, may decide it"
    if found.metric_note:
        yield f"metric not measured: {found.metric_note}"
    for warning in found.warnings:
        yield f"warning: {warning}"


def _required(wanted: Requirement) -> str:
    return f"{wanted.text}: {'holds' if wanted.holds else 'does not hold'}"


def _ledger(ledger: LedgerEntry) -> str:
    reached = "none" if ledger.e_value is None else f"{ledger.e_value:.3g}"
    needs = f"error rate {ledger.alpha:.2g}; e-value needed {ledger.needed:.3g}, reached {reached}"
    head = f"; head {ledger.head}" if ledger.head else ""
    return f"comparison {ledger.ask}: {needs}; error rate left {ledger.left:.2g} of {ledger.total:g}{head}"


def rows(found: Compared) -> list[tuple[str, str, str, str]]:
    """Rows of both sides' measurements: title, baseline, candidate, difference; "-" where it was not measured."""
    sides = (found.baseline, found.candidate)

    def row(title: str, name: str, unit: str, scale: float = 1.0) -> tuple[str, str, str, str]:
        one, two = (getattr(side, name) for side in sides)
        change = f"{100 * (two / one - 1):+.1f} %" if one and two is not None else "-"
        return title, _number(one, unit, scale), _number(two, unit, scale), change

    def learnt(title: str, name: str) -> tuple[str, str, str, str]:
        one, two = (getattr(side, name) for side in sides)
        change = "-" if one is None or two is None else f"{two - one:+.4g}" if two != one else "0"
        return title, _number(one), _number(two), change

    table = [
        row("step", "step_seconds", "ms", 1000.0),
        row("throughput", "samples_per_second", "samples/s"),
        row("start to first step", "start_seconds", "s"),
    ]
    after = f"after {found.learning.steps} steps"
    if found.learning.steps and (found.metric or found.metric_note):
        table.append(learnt(f"{found.metric or 'metric'} {after}", "metric"))
    if found.loss_batches:
        batches = "1 batch" if found.loss_batches == 1 else f"{found.loss_batches} batches"
        table.append(learnt(f"training loss {after}, {batches}", "loss"))
    return table


def _number(value: float | None, unit: str = "", scale: float = 1.0) -> str:
    return "-" if value is None else f"{value * scale:.4g} {unit}".rstrip()


def _ratio(estimate: Estimate | None) -> str:
    if estimate is None:
        return "not measured"
    sure = f"{100 * estimate.confidence:.4g} % CI " if estimate.confidence is not None else ""
    pairs = "1 pair" if estimate.n == 1 else f"{estimate.n} pairs"
    return f"{estimate.value:.2f}x ({sure}{estimate.low:.2f} to {estimate.high:.2f}, {pairs} of processes)"


def _side(side: ComparedSide) -> str:
    return f"{side.given} ({side.commit[:12]})" if side.commit else side.given


def facts(found: Compared) -> list[tuple[str, str]]:
    """Title and text of what is said of the comparison as a whole."""
    at = found.environment
    reported = [
        ("Answer", f"{ANSWERS[found.answer]}: {found.reason}"),
        ("Speedup of a step", _ratio(found.throughput)),
        (f"Speedup of the planned run ({found.planned_steps} steps)", _ratio(found.planned_run)),
        ("Quality", f"{found.learning.level}: {found.learning.detail or 'not tested'}"),
        ("Metric", found.metric_note and f"not measured: {found.metric_note}"),
        ("Required", found.requirement and _required(found.requirement)),
        ("Ledger", found.ledger and _ledger(found.ledger)),
        ("Machine", at and f"{at.device_name or at.device}, torch {at.torch}, seed {found.seed}"),
        ("Command", found.command),
        *(("Warning", warning) for warning in found.warnings),
    ]
    return [(title, text) for title, text in reported if text]


def markdown(found: Compared) -> str:
    """A table for a comment on a pull request; what users named is escaped."""
    lines = [f"**autoopt compare: {ANSWERS[found.answer]}**", "", "| | |", "| --- | --- |"]
    lines += [f"| {_cell(title)} | {_cell(text)} |" for title, text in facts(found)]
    lines += ["", f"| | {_cell(_side(found.baseline))} | {_cell(_side(found.candidate))} | difference |"]
    lines += ["| --- | --- | --- | --- |"]
    lines += [f"| {_cell(title)} | {before} | {after} | {change} |" for title, before, after, change in rows(found)]
    return "\n".join(lines) + "\n"


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
