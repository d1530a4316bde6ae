"""account.csv: every block and every whole run that was compared, one line each, from the journal.

The journal keeps the rows of each comparison in the step that measured them. The table is the same, for a spreadsheet:
speeds, ratios and intervals of a run can be computed again from it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoopt.records import JsonDict, Plan
from autoopt.records.account import Account, Row
from autoopt.storage.journal import read_journal


@dataclass(frozen=True)
class Entry:
    """A row with what it was measured for.

    Args:
        evidence: purpose of the step that measured it, such as ``trial 6`` or ``verification``.
        comparison: number of the comparison, from 1.
    """

    evidence: str
    comparison: int
    row: Row


def entries(journal: Path) -> Iterator[Entry]:
    """Rows of all comparisons of a run, in the order in which they were measured.

    Raises:
        DocumentError: the journal is damaged.
    """
    begun: dict[int, JsonDict] = {}
    number = 0
    for record in read_journal(journal):
        if record.get("type") == "start":
            begun[record["step"]] = record
        elif record.get("type") == "end":
            start = begun.get(record["step"], {"kind": "", "key": {}})
            purpose, document = str(start["key"].get("purpose", start["kind"])), record.get("document")
            compared = [[Row.model_validate(row) for row in each["rows"]] for each in _comparisons(document)]
            for rows in (*compared, *filter(None, [[*_whole_runs(start, document)]])):
                number += 1
                yield from (Entry(purpose, number, row) for row in rows)


def _whole_runs(start: JsonDict, document: object) -> Iterator[Row]:
    """A pair of whole runs as a block of each; one alone has nothing that it is compared with."""
    key = start["key"]
    if not key.get("whole") or not isinstance(document, dict):
        return
    for side, plan in (("baseline", "baseline"), ("best", "plan")):
        if isinstance(run := document.get(side), dict) and plan in key:
            yield Row(
                plan=json.dumps(key[plan]),
                process=f"whole run, seed {key.get('seed')}",
                round=0,
                start=start.get("at", 0.0),
                steps=run["steps"],
                samples=run["samples"],
                seconds=run["seconds"],
            )


def _comparisons(document: object) -> Iterator[JsonDict]:
    """Comparisons with rows that a step's document is, or holds."""
    if isinstance(document, dict):
        if "decision" in document and document.get("rows"):
            yield document
        else:
            for value in document.values():
                yield from _comparisons(value)
    elif isinstance(document, list):
        for value in document:
            yield from _comparisons(value)


def summary(found: Sequence[Entry]) -> Account:
    """What was measured in all."""
    return Account(
        blocks=len(found),
        processes=len({entry.row.process for entry in found}),
        seconds=sum(entry.row.seconds for entry in found),
    )


def table(found: Sequence[Entry]) -> str:
    """The text of account.csv: a column for each stage after :data:`COLUMNS`, in seconds."""
    stages = sorted({name for entry in found for name in entry.row.stage_seconds})
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, *(f"{name}_s" for name in stages)])
    for entry in found:
        own = [column(entry) for column in COLUMNS.values()]  # None leaves its cell empty
        writer.writerow([*own, *(round(entry.row.stage_seconds.get(name, 0.0), 6) for name in stages)])
    return text.getvalue()


def _plan(entry: Entry) -> str:
    changes = Plan.model_validate_json(entry.row.plan).changes
    return " + ".join(f"{change.strategy}{change.setting or ''}" for change in changes) or "baseline"


COLUMNS: dict[str, Callable[[Entry], object]] = {
    "evidence": lambda entry: entry.evidence,
    "comparison": lambda entry: entry.comparison,
    "plan": _plan,
    "process": lambda entry: entry.row.process,
    "round": lambda entry: entry.row.round,
    "start_s": lambda entry: round(entry.row.start, 3),
    "steps": lambda entry: entry.row.steps,
    "samples": lambda entry: entry.row.samples,
    "seconds": lambda entry: round(entry.row.seconds, 6),
    "foreign_cpu_s": lambda entry: None if (used := entry.row.foreign_cpu_seconds) is None else round(used, 3),
    "late_s": lambda entry: round(entry.row.late_seconds, 6),
}
