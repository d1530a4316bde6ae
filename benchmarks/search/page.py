"""The page on simulated searches: shares of the attainable by budget, and what each scheduling rule is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from benchmarks.documents import MISSING, Document, load, machine, sections, table


def render(results: Path) -> str:
    found, worth = load(results / "minutes.json"), load(results / "knockout.json")
    head = (
        "Whole searches on simulated machines whose truth is known. A cell is the mean share of the attainable log "
        "speedup, and in brackets how many runs kept a change that brings nothing.\n\n"
        "Reproduce: `python -m benchmarks.search.minutes`; the same with `--start 12 --budgets 300 600 1800`; "
        "`python -m benchmarks.search.knockout`."
    )
    kinds = [found.get("revisions", {}), found.get("slow_starts", {}), worth.get("revisions", {})]
    places = [one["environment"] for revisions in kinds for one in revisions.values()]
    return sections(head, minutes(found), knockout(worth), machine(*places))


def minutes(document: Document) -> str:
    """The share of the attainable by budget, of each revision, and by case, of the last one."""
    slow = document.get("slow_starts", {})
    parts = [_shares(document.get("revisions", {}))]
    if slow:
        seconds = list(slow.values())[-1]["start"]
        parts += [f"The same where each process takes {seconds:g} s to start, as on many GPUs.", _shares(slow)]
    return sections(*parts)


def _shares(revisions: Document) -> str:
    if not revisions:
        return "Not measured yet."
    budgets = sorted({row["budget"] for found in revisions.values() for row in found["rows"]})
    lines, before = list[list[str]](), set[str]()
    for name, found in revisions.items():
        rows, cases = found["rows"], {row["case"] for row in found["rows"]}
        lines.append([f"`{name}`", *(_cell([row for row in rows if row["budget"] == budget]) for budget in budgets)])
        if before and cases - before:  # of the cases that the one before had: means of others do not compare
            known = [row for row in rows if row["case"] in before]
            cells = (_cell([row for row in known if row["budget"] == budget]) for budget in budgets)
            lines.append([f"`{name}` without {', '.join(sorted(cases - before))}", *cells])
        before = cases
    rows = list(revisions.values())[-1]["rows"]
    by_case = [
        [case, *(_cell([row for row in rows if (row["case"], row["budget"]) == (case, budget)]) for budget in budgets)]
        for case in dict.fromkeys(row["case"] for row in rows)
    ]
    heads = [f"{budget / 60:g} min" for budget in budgets]
    return sections(table(["revision", *heads], lines), table(["case", *heads], by_case))


def _cell(rows: Sequence[Document]) -> str:
    shares = [share for row in rows for share in row["share"] if share is not None]
    useless = [count > 0 for row in rows for count in row["useless"]]
    if not useless:
        return MISSING
    return f"{f'{fmean(shares):.1%}' if shares else '-'} ({sum(useless)} of {len(useless)})"


def knockout(document: Document) -> str:
    """What a run loses without each rule, of the last revision; the others stay in the results."""
    revisions = document.get("revisions", {})
    if not revisions:
        return ""
    name, found = list(revisions.items())[-1]
    times = [f"{budget / 60:g} min" for budget in found["budgets"]]
    lines = [
        [row["rule"], row["runs"], row["acted"], *map(_worth, row["points"]), f"{row['useless']} of {row['runs']}"]
        for row in found["rows"]
    ]
    what = "points of the share that a run loses, with the standard error, and runs that keep what brings nothing"
    head = ["without the rule", "runs", "it acted in", *times, "all", "useless kept"]
    return sections(f"One rule switched off at a time at `{name}`: {what}.", table(head, lines))


def _worth(points: Sequence[float]) -> str:
    """Points with their error; the share where there is none."""
    if not points:
        return MISSING
    return f"{points[0]:+.1f} ± {points[1]:.1f}" if len(points) > 1 else f"{points[0]:.1f}%"
