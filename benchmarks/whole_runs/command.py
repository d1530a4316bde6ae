"""The command line of a suite of whole runs: prepare, freeze, search, judge; results in one document by revision."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoopt.errors import UsageError
from autoopt.options.parsers import parse_duration
from benchmarks.documents import environment, load, parser_of, save
from benchmarks.whole_runs.cases import Case, CaseError, Suite, hashes
from benchmarks.whole_runs.data import cache, prepared
from benchmarks.whole_runs.figures import PATCHED, UNTOUCHED, logarithms, summary
from benchmarks.whole_runs.judge import Run, Side, fixed_sides, rounds
from benchmarks.whole_runs.tools import PUT_ON, TOOLS, revision, searched, side_of

NONE = "none"
AGAIN = "untouched, again"
AUTOOPT = "autoopt"


def document(suite: Suite) -> dict[str, Any]:
    """All searches and judgements so far."""
    return {"searches": [], "judgements": [], "controls": [], **load(suite.results)}


def machine_of(row: dict[str, Any]) -> str:
    """What tells machines apart in a table."""
    one = row.get("environment") or {}
    return f"{one.get('cores')} cores of {one.get('cpu')}"


def rows_of(rows: Sequence[dict[str, Any]], **key: Any) -> list[dict[str, Any]]:
    """The rows of this key, in the order in which they were made; a search without a tool is autoopt's."""
    return [row for row in rows if all({"tool": AUTOOPT, **row}.get(name) == value for name, value in key.items())]


def only_once(rows: Sequence[dict[str, Any]], again: bool, **key: Any) -> int:
    """How many rows of this key there are already of this machine.

    Raises:
        CaseError: there are some, and a repetition was not asked for.
    """
    here = machine_of({"environment": environment()})
    number = len([row for row in rows_of(rows, **key) if machine_of(row) == here])
    if number and not again:
        said = ", ".join(f"{name} {value}" for name, value in key.items())
        raise CaseError(f"done already: {said}; the first one counts (--again repeats it, and is recorded as such)")
    return number


def first_searches(known: dict[str, Any], case: Case) -> dict[str, dict[str, Any]]:
    """Each tool's first search of a case by this revision on this machine."""
    here = machine_of({"environment": environment()})
    rows = [row for row in rows_of(known["searches"], case=case.name, revision=revision()) if machine_of(row) == here]
    return {row.get("tool", AUTOOPT): row for row in reversed(rows)}


def search(suite: Suite, name: str, tool: str, budget: str, again: bool) -> dict[str, Any]:
    """One search of a case by this revision, kept in the results whatever it ends with."""
    if tool not in (*TOOLS, *PUT_ON):
        raise CaseError(f"unknown tool {tool!r}; there are: {', '.join((*TOOLS, *PUT_ON))}")
    case = suite.case(name)
    suite.check_frozen(case)
    suite.fetch(case)
    known = document(suite)
    number = only_once(known["searches"], again, case=name, tool=tool, revision=revision())
    row = {"case": name, "tool": tool, "revision": revision(), "again": number > 0, "environment": environment()}
    watched = first_searches(known, case).get(AUTOOPT)
    run = cache() / watched["folder"] / "run" if watched else None
    seed, data = secrets.randbelow(2**31), data_of(suite, case)
    row |= searched(tool, case, data, parse_duration(budget), seed, number, run)
    save(suite.results, {**known, "searches": [*known["searches"], row]})
    return row


def data_of(suite: Suite, case: Case) -> Path:
    """The folder of a case's data, made if it is not there."""
    return prepared(case.place or case.name, suite.makers, suite.version)


def judge(
    suite: Suite, name: str, patched: str | None, number: int, again: bool, note: str, words: list[str]
) -> dict[str, Any]:
    """Whole runs of a case; what is judged are this revision's first searches, a folder with train.py, or none."""
    case = suite.case(name)
    suite.fetch(case)
    known = document(suite)
    mine = first_searches(known, case) if patched is None else {}
    if patched is None and not mine:
        raise CaseError(f"no patch: {name} was not searched by {revision()} (search it, or give --patched DIR|none)")
    source = patched or "search"
    repeated = only_once(known["judgements"], again, case=name, revision=revision(), patched=source, words=words)
    sides = fixed_sides(case)
    for tool, found in mine.items():
        if not changes_nothing(found):
            sides[PATCHED if tool == AUTOOPT else tool] = side_of(case, found)
    if patched not in (None, NONE):
        if not (Path(patched) / "train.py").is_file():
            raise CaseError(f"no patched script: {patched} holds no train.py (give `none` to judge the expert alone)")
        sides[PATCHED] = Side(Path(patched), "train.py")
    row = {
        "case": name,
        "revision": revision(),
        "patched": source,
        "tools": sorted(mine),
        "again": repeated > 0,
        "note": note,
        "words": words,
        "scripts": hashes(case),
        "environment": environment(),
    }

    def keep(runs: list[Run]) -> None:
        row.update(runs=runs)
        save(suite.results, {**known, "judgements": [*known["judgements"], row]})
        sys.stderr.write("".join(json.dumps(run) + "\n" for run in runs[-1:]))

    keep([])
    rounds(case, sides, data_of(suite, case), number if len(sides) > 1 else 0, keep, words)
    return row


def control(suite: Suite, name: str, number: int, note: str) -> dict[str, Any]:
    """The untouched script beside itself, interleaved: how far whole runs of one program lie from each other."""
    case = suite.case(name)
    suite.fetch(case)
    known = document(suite)
    untouched = fixed_sides(case)[UNTOUCHED]
    row = {"case": name, "revision": revision(), "note": note, "environment": environment()}

    def keep(runs: list[Run]) -> None:
        row.update(runs=runs)
        save(suite.results, {**known, "controls": [*known["controls"], row]})

    keep([])
    rounds(case, {UNTOUCHED: untouched, AGAIN: untouched}, data_of(suite, case), number, keep)
    return row


def figures_of(case: Case, searches: dict[str, dict[str, Any]], judged: dict[str, Any]) -> dict[str, Any]:
    """All figures of a judgement, with the searches that it judged."""
    mine = {tool: row for tool, row in searches.items() if tool in judged.get("tools", [AUTOOPT])}
    mine = mine if judged["patched"] == "search" else {}
    empty = {PATCHED if tool == AUTOOPT else tool for tool, row in mine.items() if changes_nothing(row)}
    claim = mine[AUTOOPT]["claim"] if AUTOOPT in mine else None
    return summary(case, judged["runs"], claim, empty)


def changes_nothing(search: dict[str, Any]) -> bool:
    """Whether what a tool left is the untouched script; a patch that git refuses is as good as none."""
    return bool(search["refused"]) or not (search["patch"].strip() or search.get("variables"))


def freeze(suite: Suite) -> None:
    """Writes the hashes of all scripts down; only before the first search.

    Raises:
        CaseError: a search has run already.
    """
    if document(suite)["searches"]:
        raise CaseError("searches have run: the scripts stay as they were frozen")
    save(suite.freeze, {"date": time.strftime("%Y-%m-%d"), "revision": revision(), **suite.hashes()})


def options_of(suite: Suite, description: str | None) -> argparse.ArgumentParser:
    """The options of every command."""
    parser = parser_of(f"benchmarks.{suite.name}", description)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="the data of every case")
    commands.add_parser("freeze", help="write down what the scripts are, before the first search")
    searching = commands.add_parser("search", help="let tools work on a case for the budget each")
    judging = commands.add_parser("judge", help="whole runs of what this revision's first searches found")
    running = commands.add_parser("run", help="search, then judge")
    beside_itself = commands.add_parser("control", help="the untouched script beside itself")
    for one in (searching, judging, running, beside_itself):
        one.add_argument("case")
    for one in (searching, judging, running):
        one.add_argument("--again", action="store_true", help="repeat what this revision has done; recorded as such")
    for one in (searching, running):
        one.add_argument("--budget", default="4m", help="of each tool")
        one.add_argument("--tools", default=",".join(suite.tools), help="of " + ", ".join((*TOOLS, *PUT_ON)))
    for one in (judging, running, beside_itself):
        one.add_argument("--rounds", type=int, default=5)
        one.add_argument("--note", default="", help="kept beside the figures: what a reader must know of the machine")
    judging.add_argument("--patched", help="a folder with train.py, or none; by default this revision's first searches")
    judging.add_argument("words", nargs="*", help="after --, further words for every side's script")
    return parser


def main(suite: Suite, description: str | None, given: list[str] | None = None) -> int:
    """The command line; 2 for what cannot be done, 1 for a side that failed."""
    asked = options_of(suite, description).parse_args(given)
    try:
        return _done(suite, asked)
    except (CaseError, UsageError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _done(suite: Suite, asked: argparse.Namespace) -> int:
    if asked.command == "prepare":
        for case in suite.cases.values():
            suite.fetch(case)
            print(case.name, data_of(suite, case))
    elif asked.command == "freeze":
        freeze(suite)
    elif asked.command == "control":
        row = control(suite, asked.case, asked.rounds, asked.note)
        print(json.dumps({"case": asked.case, "log_ratios": logarithms(row["runs"], AGAIN)}))
    if asked.command in ("search", "run"):
        rows = [search(suite, asked.case, tool, asked.budget, asked.again) for tool in asked.tools.split(",")]
        for row in rows:
            print(json.dumps({key: row.get(key) for key in ("case", "tool", "status", "seconds", "claim", "refused")}))
        if asked.command == "search":
            return int(any(row["refused"] for row in rows))
    if asked.command in ("judge", "run"):
        more = ("patched", None), ("words", [])
        patched, words = (getattr(asked, name, otherwise) for name, otherwise in more)
        row = judge(suite, asked.case, patched, asked.rounds, asked.again, asked.note, words)
        case = suite.case(asked.case)
        print(json.dumps({"case": asked.case, **figures_of(case, first_searches(document(suite), case), row)}))
        failed = [run for run in row["runs"] if run["error"] is not None]
        for run in failed:
            sys.stderr.write(f"error: the {run['side']} script of {asked.case} {run['error']}\n")
        return int(bool(failed))
    return 0
