"""Whole runs of untouched, patched and expert's scripts; rules in the package, figures in results/whole_runs.json.

    python -m benchmarks.whole_runs prepare                       # the data of every case
    python -m benchmarks.whole_runs judge CASE --patched none     # the expert's edit alone
    python -m benchmarks.whole_runs freeze                        # before the first search
    python -m benchmarks.whole_runs search CASE --budget 4m       # one search; the first one of a revision counts
    python -m benchmarks.whole_runs judge CASE --rounds 5         # its patch beside the expert's edit
    python -m benchmarks.pages                                    # docs/measurements/whole-runs.md

Run it on a machine that does nothing else. WHOLE_RUNS_CACHE names the folder for data and searches.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS as FOLDER
from benchmarks.documents import environment, load, save
from benchmarks.whole_runs.cases import CASES, FROZEN, CaseError, case_of, check_frozen, hashes
from benchmarks.whole_runs.data import prepared
from benchmarks.whole_runs.figures import summary
from benchmarks.whole_runs.judge import Run, rounds, sides_of
from benchmarks.whole_runs.search import patched_folder, revision, searched

RESULTS = FOLDER / "whole_runs.json"
NONE = "none"


def document() -> dict[str, Any]:
    """All searches and judgements so far."""
    return {"searches": [], "judgements": [], **load(RESULTS)}


def only_once(rows: list[dict[str, Any]], again: bool, **key: Any) -> int:
    """How many rows of this key there are already.

    Raises:
        CaseError: there are some, and a repetition was not asked for.
    """
    number = sum(all(row.get(name) == value for name, value in key.items()) for row in rows)
    if number and not again:
        said = ", ".join(f"{name} {value}" for name, value in key.items())
        raise CaseError(f"done already: {said}; the first one counts (--again repeats it, and is recorded as such)")
    return number


def search(name: str, budget: str, again: bool) -> dict[str, Any]:
    """One search of a case by this revision, kept in the results whatever it ends with."""
    case = case_of(name)
    check_frozen(case)
    known = document()
    number = only_once(known["searches"], again, case=name, revision=revision())
    row = {"case": name, "revision": revision(), "again": number > 0, "environment": environment()}
    row |= searched(case, prepared(name), budget, seed=secrets.randbelow(2**31), number=number)
    save(RESULTS, {**known, "searches": [*known["searches"], row]})
    return row


def judge(name: str, patched: str | None, number: int, again: bool, note: str, words: list[str]) -> dict[str, Any]:
    """Whole runs of a case; the patched tree is the one of this revision's first search, a folder, or none."""
    case = case_of(name)
    known = document()
    mine = [row for row in known["searches"] if (row["case"], row["revision"]) == (name, revision())]
    if patched is None and not mine:
        raise CaseError(f"no patch: {name} was not searched by {revision()} (search it, or give --patched DIR|none)")
    source = patched or "search"
    repeated = only_once(known["judgements"], again, case=name, revision=revision(), patched=source, words=words)
    found = mine[0] if patched is None else None
    empty = found is not None and not found["patch"].strip()
    folder = None if patched == NONE or empty else Path(patched) if patched else patched_folder(mine[0])
    row = {
        "case": name,
        "revision": revision(),
        "patched": source,
        "again": repeated > 0,
        "note": note,
        "words": words,
        "scripts": hashes(case),
        "environment": environment(),
    }

    def keep(runs: list[Run]) -> None:
        row.update(runs=runs, figures=summary(case, runs, found["claim"] if found else None, empty))
        save(RESULTS, {**known, "judgements": [*known["judgements"], row]})
        sys.stderr.write(json.dumps(runs[-1]) + "\n")

    rounds(case, sides_of(case, folder), prepared(name), number, keep, words)
    return row


def freeze() -> None:
    """Writes the hashes of all scripts down; only before the first search.

    Raises:
        CaseError: a search has run already.
    """
    if document()["searches"]:
        raise CaseError("searches have run: the scripts stay as they were frozen")
    hashed = {name: hashes(case) for name, case in CASES.items()}
    save(FROZEN, {"date": time.strftime("%Y-%m-%d"), "revision": revision(), "cases": hashed})


def main(given: list[str] | None = None) -> int:
    """The command line; 2 for what cannot be done, 1 for a side that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whole_runs")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare")
    commands.add_parser("freeze")
    searching = commands.add_parser("search")
    searching.add_argument("case")
    searching.add_argument("--budget", default="4m")
    judging = commands.add_parser("judge")
    judging.add_argument("case")
    judging.add_argument("--patched", help="a folder with train.py, or none; by default this revision's first search")
    judging.add_argument("--rounds", type=int, default=5)
    judging.add_argument("--note", default="", help="kept beside the figures: what a reader must know of the machine")
    judging.add_argument("words", nargs="*", help="after --, further words for every side's script")
    for one in (searching, judging):
        one.add_argument("--again", action="store_true", help="repeat what this revision has done; recorded as such")
    asked = parser.parse_args(given)
    try:
        return _done(asked)
    except CaseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2


def _done(asked: argparse.Namespace) -> int:
    if asked.command == "prepare":
        for name in CASES:
            print(name, prepared(name))
    elif asked.command == "freeze":
        freeze()
    elif asked.command == "search":
        row = search(asked.case, asked.budget, asked.again)
        print(json.dumps({key: row[key] for key in ("case", "exit_code", "seconds", "claim", "refused")}))
        return 1 if row["refused"] else 0
    else:
        row = judge(asked.case, asked.patched, asked.rounds, asked.again, asked.note, asked.words)
        print(json.dumps({"case": asked.case, **row["figures"]}))
        failed = [run for run in row["runs"] if run["error"] is not None]
        for run in failed:
            sys.stderr.write(f"error: the {run['side']} script of {asked.case} {run['error']}\n")
        return 1 if failed else 0
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
