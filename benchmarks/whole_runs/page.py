"""Tables and pages of a suite, made from its results document and the experts' notes alone."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from benchmarks.documents import MISSING, sections, table
from benchmarks.whole_runs.cases import WHOLE_RUNS, Case, Suite
from benchmarks.whole_runs.command import AGAIN, AUTOOPT, changes_nothing, figures_of, machine_of, rows_of
from benchmarks.whole_runs.figures import EXPERT, PATCHED, logarithms, ratio

HEAD = """Each script is searched once. Then whole runs of the untouched, the patched and the expert's script are
timed from process start to end, interleaved in random order, with fresh seeds shared by the three. Ratios are
untouched seconds over the side's seconds, above 1 is faster; brackets are 95 % intervals over the rounds.
Score: log(patched) / log(expert). "-" is not measured.
"""
Row = dict[str, Any]


class Judged:
    """A case with the first searches of the last revision that searched it, and their first judgement.

    Before any search the judgement is the expert's alone. Runs with further words are trials, and on no page.

    Args:
        machine: whose rows count; by default the one with most of them.
    """

    def __init__(self, case: Case, document: Row, machine: str | None = None) -> None:
        every = [machine_of(row) for key in ("searches", "judgements") for row in document.get(key, [])]
        here = machine or max(every, key=every.count, default="")

        def mine(key: str, **more: Any) -> list[Row]:
            rows = rows_of(document.get(key, []), case=case.name, **more)
            return [row for row in rows if machine_of(row) == here]

        self.case = case
        own = mine("searches", tool=AUTOOPT)
        judgements = [row for row in mine("judgements") if not row["words"]]
        self.searches: dict[str, Row] = {}
        alone = [row for row in judgements if row["patched"] == "none"]
        self.row = alone[-1] if alone and not own else None
        if own:
            revision = own[-1]["revision"]
            rows = mine("searches", revision=revision)
            self.searches = {row.get("tool", AUTOOPT): row for row in reversed(rows)}
            same = (row for row in judgements if row["revision"] == revision and row["patched"] == "search")
            self.row = next(same, None)
        self.figures = figures_of(case, self.searches, self.row) if self.row else {"sides": {}, "claim_holds": None}

    @property
    def search(self) -> Row | None:
        return self.searches.get(AUTOOPT)

    @property
    def revision(self) -> str:
        return str((self.row or self.search or {"revision": "-"})["revision"])

    def side(self, name: str) -> Row:
        """The figures of a side; those of one that was not judged are None."""
        return self.figures["sides"].get(name) or dict.fromkeys(
            ("speedup", "without_start", "exact", "algorithmic", "score", "no_score", "logs")
        )


def render(document: Row) -> str:
    """The page of whole runs: table, cases and tolerances, patches in full, the experts' edits."""
    cases = [Judged(case, document) for case in WHOLE_RUNS.cases.values()]
    head = ["script", "revision", "claim", "patched", "expert", "score", "claim within 10 %", "other CPU"]
    tolerances = [[c.name, c.metric, f"{c.tolerance:g} worse", c.reason] for c in WHOLE_RUNS.cases.values()]
    return sections(
        HEAD,
        table(head, [_row(one) for one in cases]),
        _totals(cases),
        _controls(document),
        "## Metrics and tolerances",
        table(["script", "metric", "tolerance", "reason"], tolerances),
        *(details(one) for one in cases),
        _every_search(document),
    )


def _every_search(document: Row) -> str:
    """All searches of all revisions, whatever came of them."""
    names = {"cannot": "ended with an error", "nothing": "nothing kept", "result": "a patch"}
    lines = []
    for row in document.get("searches", []):
        claim = row.get("claim") if row.get("status") == "result" else None
        result = names.get(row.get("status", ""), MISSING)
        lines.append([row["case"], f"`{row['revision'][:8]}`", result, f"{claim['value']:.2f}×" if claim else "-"])
    return sections("## Every search", table(["script", "revision", "result", "claim"], lines))


def short_rows(document: Row) -> list[list[str]]:
    """Cases that were judged: script, speedup of the patch, that of the expert's edit, changes of the patch."""
    rows = []
    for case in WHOLE_RUNS.cases.values():
        one = Judged(case, document)
        if one.search is None or one.row is None:
            continue
        made = [f"`{change['strategy']}`" for change in one.search["changes"] if change["how"] == "patched"]
        speedups = [figure(one.side(side)["speedup"]) for side in (PATCHED, EXPERT)]
        rows.append([case.name, *speedups, ", ".join(made) or "nothing"])
    return rows


def figure(estimate: Row | None, unit: str = "×") -> str:
    """A figure with its interval, or the count where it has none."""
    if estimate is None:
        return "-"
    value = f"{estimate['value']:.2f}{unit}"
    if estimate["low"] is None:
        return f"{value} (n={estimate['n']}, no interval)"
    return f"{value} [{estimate['low']:.2f}, {estimate['high']:.2f}]"


def _row(one: Judged) -> list[str]:
    claim = one.search["claim"] if one.search else None
    claimed = "-" if not claim or claim["value"] is None else f"{claim['value']:.2f}× {claim['kind']}"
    holds = {True: "yes", False: "no", None: "-"}[one.figures["claim_holds"]]
    others = [run["other_cpu_seconds"] / run["seconds"] for run in one.row["runs"] if _timed(run)] if one.row else []
    return [
        one.case.name,
        f"`{one.revision}`",
        claimed,
        figure(one.side(PATCHED)["speedup"]),
        figure(one.side(EXPERT)["speedup"]),
        one.side(PATCHED)["no_score"] or figure(one.side(PATCHED)["score"], ""),
        holds,
        f"{max(others):.1f} cores at most" if others else "-",
    ]


def _timed(run: Row) -> bool:
    return bool(run["seconds"]) and run.get("other_cpu_seconds") is not None


def _totals(cases: Iterable[Judged]) -> str:
    scores = [one.side(PATCHED)["score"]["value"] for one in cases if one.side(PATCHED)["score"]]
    claims = [one.figures["claim_holds"] for one in cases if one.figures["claim_holds"] is not None]
    if not scores:
        return "No search has been judged yet.\n"
    below = sum(score < 0 for score in scores)
    return (
        f"Median score {statistics.median(scores):.2f} of {len(scores)} scripts, {below} below 0; "
        f"{sum(claims)} of {len(claims)} claims within 10 %.\n"
    )


def _controls(document: Row) -> str:
    """How far whole runs of the untouched script lie from each other."""
    rows = [
        [row["case"], f"`{row['revision']}`", ", ".join(f"{one:+.3f}" for one in logarithms(row["runs"], AGAIN))]
        for row in document.get("controls", [])
    ]
    return "## The untouched script compared with itself\n\n" + table(
        ["script", "revision", "log ratio of each pair"], rows
    )


def details(one: Judged) -> str:
    """A case's patch in full, and the expert's edits."""
    parts = [f"## {one.case.name}\n"]
    if one.search:
        patch = one.search["patch"].strip()
        parts.append(f"Searched for {one.search['budget']}, ended with {one.search['exit_code']}.\n")
        parts.append(f"```diff\n{patch}\n```\n" if patch else "The patch is empty.\n")
        unsaid = [change for change in one.search["changes"] if change["how"] != "patched"]
        ways = [change["how"].replace("by hand", "manual") for change in unsaid]
        parts += [f"* `{one['strategy']}`: {way}: {one['reason']}" for one, way in zip(unsaid, ways, strict=True)]
    if one.row and one.row["note"]:
        parts.append(f"Note: {one.row['note']}\n")
    if one.case.expert is not None:
        parts += ["An expert's edits:\n", experts_notes(one), ""]
    return "\n".join(parts)


def experts_notes(one: Judged) -> str:
    return (one.case.folder / "EXPERT.md").read_text(encoding="utf-8").strip()


WORDS = {
    "nothing": "no change",
    "stopped": "no result in time",
    "cannot": "cannot",
    "failed": "broke",
}


def outcome(one: Judged, tool: str, what: str = "speedup") -> str:
    """A tool's result on a case in a cell."""
    side = one.side(PATCHED if tool == AUTOOPT else tool)
    search = one.searches.get(tool)
    if search is None or one.row is None:
        return "-"
    if search["refused"]:
        return "its patch does not apply"
    if changes_nothing(search):
        return WORDS.get(search.get("status", "nothing"), "no change")
    if side["no_score"] and side["logs"] is None:
        lost = any(word in side["no_score"] for word in ("metric lost", "target missed"))
        return f"{side['no_score'].split(': ')[-1]} ({figure(side['speedup'])})" if lost else "its result does not run"
    return figure(side[what])


def logarithm(one: Judged, tool: str) -> float | None:
    """What counts of a tool's result on a case in a mean: 0 where it has none that counts, None where it cannot run."""
    search = one.searches.get(tool)
    if search is None or one.row is None or search.get("status") == "cannot":
        return None
    logs = one.side(PATCHED if tool == AUTOOPT else tool)["logs"]
    return statistics.fmean(logs) if logs else 0.0


def ahead(cases: Sequence[Judged], rivals: Sequence[str]) -> list[list[str]]:
    """The geometric mean over the cases of autoopt's speedup over each rival's, with its interval, in rows."""
    rows = []
    for rival in rivals:
        both = [(logarithm(one, AUTOOPT), logarithm(one, rival)) for one in cases]
        gaps = [ours - theirs for ours, theirs in both if ours is not None and theirs is not None]
        rows.append([rival, str(len(gaps)), figure(ratio(gaps))])
    return rows


def machines(suite: Suite, document: Row, row: Callable[[Judged], list[str]]) -> list[list[str]]:
    """A row for each machine and case that was judged on it."""
    seen = sorted({machine_of(one) for one in document.get("judgements", [])})
    every = [(name, Judged(case, document, name)) for name in seen for case in suite.cases.values()]
    return [[name, one.case.name, f"`{one.revision}`", *row(one)] for name, one in every if one.row and one.searches]
