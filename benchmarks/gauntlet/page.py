"""docs/measurements/gauntlet.md, made from benchmarks/results/gauntlet.json and the experts' notes alone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from benchmarks.documents import sections, table
from benchmarks.gauntlet.cases import GAUNTLET, PLACEBO
from benchmarks.whole_runs.command import AUTOOPT, changes_nothing, machine_of
from benchmarks.whole_runs.figures import EXPERT, PATCHED
from benchmarks.whole_runs.page import Judged, ahead, experts_notes, figure, machines, outcome
from benchmarks.whole_runs.tools import RIVALS

HEAD = """Each case is a script, and the same training as an expert rewrites it. Whole runs to the same target are timed
from process start to end, interleaved, with fresh seeds. Ratios are untouched seconds over the side's, above 1 is
faster, with 95 % intervals over the rounds. Score: log(patched) / log(expert). *Algorithmic*: by fewer samples until
the target; *exact*: by fewer seconds a sample. "-" is not measured.

Rules: `benchmarks/gauntlet/RULES.md`. Reproduce: `make gauntlet CASE=jpegs`.
"""


def render(document: dict[str, Any]) -> str:
    """The page: scores, rivals, machines, the experts' edits."""
    cases = [Judged(case, document) for name, case in GAUNTLET.cases.items() if not name.endswith(PLACEBO)]
    parts = ["expert, exact", "expert, algorithmic"]
    head = ["case", "revision", "budget", "autoopt", "score", "expert", *parts]
    twins = defaultdict[tuple[str, str, str], tuple[list[str], list[str]]](lambda: ([], []))
    for row in document.get("searches", []):
        name = row["case"].removesuffix(PLACEBO)
        if name != row["case"] and not row.get("again"):
            of = machine_of(row), f"`{row['revision']}`", str(row.get("budget", "-"))
            kept = not changes_nothing(row)
            judged = Judged(GAUNTLET.cases[row["case"]], document, of[0]).side(PATCHED)["speedup"] if kept else None
            twins[of][kept].append(name if judged is None else f"{name}: {figure(judged)} judged")
    placebos = [[*of, *(", ".join(names) or "-" for names in found)] for of, found in twins.items()]
    targets = [[one.case.name, f"{one.case.metric} {one.case.target:g}", one.case.reason] for one in cases]
    started = [
        [one.case.name, *(figure(one.side(side)["without_start"]) for side in (PATCHED, EXPERT))] for one in cases
    ]
    rivals = [tool for tool in RIVALS if any(tool in one.searches for one in cases)]
    compared = [[one.case.name, *(outcome(one, tool) for tool in (AUTOOPT, *rivals))] for one in cases]
    others = [
        table(["case", AUTOOPT, *rivals], compared),
        "Geometric mean of autoopt's speedup over each tool's, with its 95 % interval:",
        table(["tool", "cases", "autoopt / tool"], ahead(cases, rivals)),
    ]
    return sections(
        HEAD,
        table(head, [_row(one) for one in cases]),
        _totals(cases),
        "## Placebo twins\n\nNothing is to be gained; every first search.",
        table(["machine", "revision", "budget", "kept nothing", "kept a change"], placebos),
        "## Other tools in the same rounds",
        *(others if rivals else [f"Not measured: {', '.join(RIVALS)}."]),
        "## Without the start\n\nTimed from the first step on.",
        table(["case", AUTOOPT, "expert"], started),
        "## Machines",
        table(["machine", "case", "revision", "score", "autoopt", "expert"], machines(GAUNTLET, document, _score)),
        "## Cases and targets",
        table(["case", "target", "what it is"], targets),
        *(f"### {one.case.name}\n\n{experts_notes(one)}" for one in cases),
    )


def _row(one: Judged) -> list[str]:
    expert, score = one.side(EXPERT), _score(one)
    return [
        one.case.name,
        f"`{one.revision}`",
        "-" if one.search is None else str(one.search.get("budget", "-")),
        score[1],
        score[0],
        score[2],
        figure(expert["exact"]),
        figure(expert["algorithmic"]),
    ]


def _score(one: Judged) -> list[str]:
    """Score, speedup of the patch, speedup of the expert's edit."""
    side = one.side(PATCHED)
    return [side["no_score"] or figure(side["score"], ""), *(figure(one.side(s)["speedup"]) for s in (PATCHED, EXPERT))]


def _totals(cases: list[Judged]) -> str:
    scores = [one.side(PATCHED)["score"]["value"] for one in cases if one.side(PATCHED)["score"]]
    if not scores:
        return "No search has been judged yet.\n"
    return f"{sum(score >= 0.9 for score in scores)} of {len(scores)} judged cases score 0.9 or more.\n"
