"""docs/peers.md, made from benchmarks/results/peers.json alone."""

from __future__ import annotations

from typing import Any

from benchmarks.documents import sections, table
from benchmarks.peers.scripts import ORIGINS, PEERS
from benchmarks.whole_runs.command import AUTOOPT
from benchmarks.whole_runs.page import Judged, ahead, machines, outcome
from benchmarks.whole_runs.tools import RIVALS

HEAD = """Twelve training scripts of other people, as they are. Each tool works on a script once, for four minutes.
Then whole runs of the untouched script and of each result are timed from process start to process end, interleaved,
with fresh seeds. Ratios are untouched seconds over the result's seconds, above 1 is faster; brackets are 95 %
intervals over the rounds. "No change" counts as 1, and so does a result with another metric. "-" is not measured.
autoopt was changed after its first searches on these scripts, so they are no sample of unseen ones; the
[gauntlet](measurements/gauntlet.md) has scores against experts.

Reproduce: `python -m benchmarks.peers run SCRIPT`. *Tips* are the switches of a page of tips, unmeasured. *Optuna*
searches the settings that autoopt's search lists.
"""


def render(document: dict[str, Any]) -> str:
    """The page: speedups, means over the scripts, the same without the start, the scripts."""
    cases = [Judged(case, document) for case in PEERS.cases.values()]
    tools = (AUTOOPT, *RIVALS)
    origins = [_origin(one) for one in cases]
    started = [one for one in cases if one.row and one.case.first]
    return sections(
        HEAD,
        table(["script", *tools], [[one.case.name, *(outcome(one, tool) for tool in tools)] for one in cases]),
        "## autoopt over each tool\n\nGeometric mean over the scripts on which both have a figure, with its 95 % "
        "interval. Below 1 the other tool's result is faster; an interval that holds 1 shows no difference.",
        table(["tool", "scripts", "autoopt / tool"], ahead(cases, RIVALS)),
        "## Without the start\n\nThe same runs from their first step on, where a script prints one.",
        table(
            ["script", *tools],
            [[one.case.name, *(outcome(one, tool, "without_start") for tool in tools)] for one in started],
        ),
        "## The scripts\n\nA result is as good where its final metric is no worse than the untouched script's by "
        "more than the tolerance.",
        table(["script", "source", "data", "tolerance", "reason"], origins),
        "## Machines",
        table(
            ["machine", "script", "revision", AUTOOPT],
            machines(PEERS, document, lambda one: [outcome(one, AUTOOPT)]),
        ),
    )


def _origin(one: Judged) -> list[str]:
    origin = ORIGINS[one.case.name]
    source = f"{origin.source[0] or 'this repository'} {origin.source[1][:7]}".strip()
    return [one.case.name, source, origin.stand_in, f"{one.case.tolerance:g}", one.case.reason]
