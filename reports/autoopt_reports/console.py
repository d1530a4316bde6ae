"""The result in a terminal: what standard output gets when a run is over."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoopt.records import Profile, Result
from autoopt_reports.frame import stages_lines
from autoopt_reports.terminal import console_for as console_for
from autoopt_reports.terminal import fit
from autoopt_reports.view import Report
from autoopt_reports.view.adopt import Adopt, PatchView
from autoopt_reports.view.page import AdviceView, Expectation, ProfileView
from autoopt_reports.view.stages import RunView

Row = tuple[str | Text, ...]
_LEVELS = {"good": "✓", "caution": "!", "open": "○"}


def summary(result: Result, console: Console, report: Path | None = None) -> None:
    """Verdict, trust, the changes to adopt and what to do next, in one screen."""
    view = Report(result)
    verdict = view.verdict
    style = {"faster": "bold blue", "unsure": "bold yellow", "slower": "bold yellow"}.get(verdict.status, "bold")
    _say(console, str(verdict.headline), style)
    if verdict.qualifiers:
        _say(console, " · ".join(str(piece) for piece in verdict.qualifiers), "bold")
    for line in verdict.support:
        _say(console, str(line))
    console.print()
    facts: list[Row] = []
    for fact in verdict.facts:
        values = str(fact.before) if verdict.status == "none" else f"{fact.before} → {fact.after}"
        absent = fact.before.missing and fact.after.missing
        facts.append((Text(f" {fact.label}", "dim"), str(fact.after) if absent else values))
    _grid(console, facts)
    console.print()
    rows: list[Row] = []
    for check in view.trust:
        style = "bold" if check.level != "good" else ""
        rows.append((Text(f" {_LEVELS[check.level]}", style), Text(check.label, style), str(check.text)))
    rows += [(Text(" !", "bold yellow"), "Warning", str(warning)) for warning in view.warnings]
    rows += [("", Text("Note", "dim"), Text(str(note), "dim")) for note in view.notes]
    _grid(console, rows, padding=1)
    _changes(console, view.adopt)
    if view.patch is not None:
        _patch(console, view.patch)
    if view.advice:
        console.print()
        _advice(console, view.advice)
    console.print()
    for label, text in verdict.commands:
        _command(console, label, text)
    if report is not None:
        _command(console, "Read the evidence", str(report))


def _grid(console: Console, rows: Iterable[Row], padding: int = 2) -> None:
    """Rows of texts in columns, so many spaces apart."""
    table = Table.grid(padding=(0, padding))
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(table)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(text, style=style))


def _command(console: Console, label: str, text: str) -> None:
    """Never wrapped and never shortened: it is there to be copied."""
    console.print(Text(f"{label + ':':<22} {text}"), soft_wrap=True)


def _changes(console: Console, view: Adopt) -> None:
    if not view.changes:
        return
    console.print()
    _say(console, str(view.headline), "bold")
    rows: list[Row] = []
    for place, change in enumerate(view.changes, start=1):
        alone = change.gain.text if change.gain else "not measured by itself" if change.shared else "not measured"
        gain = f"{alone}, with {change.shared}" if change.shared else alone
        safety = f"{change.risk or 'risk unknown'}, {change.gate}"
        rows.append((f" {place}.", change.label.text, Text(gain, "bold"), Text(safety, "dim")))
    _grid(console, rows)


def _patch(console: Console, view: PatchView) -> None:
    """The diff as it would be applied, and what of the plan is not in it."""
    console.print()
    _say(console, str(view.headline), "bold")
    styles = {"+": "green", "-": "red", "@": "cyan"}
    for line in (view.diff or "").splitlines():
        style = "bold" if line.startswith(("+++", "---")) else styles.get(line[:1], "")
        console.print(Text(line, style=style), soft_wrap=True)
    for label, how, where, reason in view.rows:
        if reason is not None:
            _say(console, f"{label}: {how}: {reason}" + (f" ({where})" if where else ""))


def _expectations(console: Console, rows: tuple[Expectation, ...]) -> None:
    """A row for each strategy that may be tried; the others by the reason against them."""
    shown, others = list[Row](), defaultdict[str, list[str]](list)
    for row in rows:
        reason = row.reason.text if row.reason else ""
        if reason and not (row.applies and row.predicted):
            others[reason].append(re.split("[ =]", row.label.text)[0])
            continue
        expected = row.predicted.text if row.predicted else "no prediction" if row.applies else "does not apply"
        label, style = Text(fit(f" {row.label.text}", console.width // 2)), "bold" if row.applies else "dim"
        shown.append((label, Text(expected, style), Text(reason, "dim")))
    _grid(console, shown)
    if others:
        console.print()
        _say(console, "Reasons against the others:")
    for reason, names in sorted(others.items(), key=lambda item: -len(item[1])):
        _say(console, f" {reason}: {', '.join(names)}", "dim")


def _run(console: Console, view: RunView) -> None:
    """The parts of the planned run with their seconds and shares."""
    _say(console, str(view.headline))
    rows: list[Row] = []
    for label, seconds, share, count, each in view.rows:
        times = f"{count} x {each}" if count.value != 1 else ""
        figures = (Text(str(figure), justify="right") for figure in (seconds, share))
        rows.append((Text(f" {label}", "dim"), *figures, Text(times, "dim")))
    _grid(console, rows)
    if view.missing is not None:
        _say(console, f" {view.missing}", "dim")
    console.print()


def _advice(console: Console, items: tuple[AdviceView, ...]) -> None:
    """Manual changes: first the most expensive places of the run, each with its edit."""
    for item in items[:5]:
        where = f" ({item.where})" if item.where else ""
        edit = f": {item.suggestion}" if item.costly else ""
        _say(console, f"Manual: {item.title}{where}{edit}")


def profile_summary(profile: Profile, console: Console, report: Path | None = None) -> None:
    """Where the time goes, how far the ceiling is, and what each strategy expects."""
    view = ProfileView(profile)
    _say(console, str(view.headline), "bold")
    for line in view.support:
        _say(console, str(line))
    console.print()
    for text in stages_lines(profile.round, console.width - 2):
        console.print(Text.assemble(" ", text))
    console.print()
    if view.stages is not None and view.stages.run is not None:
        _run(console, view.stages.run)
    _expectations(console, view.expectations)
    for warning in view.warnings:
        console.print(Text.assemble((" ! ", "bold yellow"), str(warning)))
    _advice(console, view.advice)
    for reported in profile.drift.summary() if profile.drift is not None else ():
        _say(console, reported)
    console.print()
    _command(console, "Search and measure", view.next_command)
    if report is not None:
        _command(console, "Read the evidence", str(report))
