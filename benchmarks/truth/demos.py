"""Runs of `make demo` in a row, and whether each headline's interval holds what whole runs of its patch show later.

    python -m benchmarks.truth.demos run 5            # on a machine that does nothing else
    python -m benchmarks.truth.demos run 5 --busy 1   # beside so many busy cores
    python -m benchmarks.truth.demos judge            # eight pairs of whole runs of each patch, under the same load
    python -m benchmarks.pages                        # docs/measurements/demos.md

Every run is recorded and none is repeated. Patches that are the same text are judged once.
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS, ROOT, environment, load, machine, names, parser_of, save, speedup, table
from benchmarks.whole_runs.cases import Case
from benchmarks.whole_runs.data import cache
from benchmarks.whole_runs.figures import PATCHED, logarithms, ratio
from benchmarks.whole_runs.judge import Run, Side, fixed_sides, rounds
from benchmarks.whole_runs.tools import revision, searched, side_of

FILE = RESULTS / "demos.json"
BUDGET = 300.0
PAIRS = 8
DEMO = Case(
    "demo",
    "accuracy ([0-9.]+)",
    "",
    True,
    0.02,
    "180 pictures; augmentations are drawn at random",
    home=ROOT,
    place="examples",
    script="train_photos.py",
    expert=None,
    words=("--epochs", "12"),
)


def _burn() -> None:
    while True:
        pass


@contextmanager
def busy(cores: int) -> Iterator[None]:
    """So many cores kept busy by other programs."""
    burning = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(cores)]
    for process in burning:
        process.start()
    try:
        yield
    finally:
        for process in burning:
            process.kill()


def document(results: Path = RESULTS) -> dict[str, Any]:
    return {"demos": [], "judged": [], **load(results / FILE.name)}


def demo(cores: int) -> None:
    """One run of the command, with what it claims and its patch."""
    known = document()
    with busy(cores):
        found = searched("autoopt", DEMO, cache(), BUDGET, 0, len(known["demos"]), None)
    row = {"busy": cores, "revision": revision(), "environment": environment(), **found}
    known["demos"].append(row)
    save(FILE, known)
    sys.stderr.write(f"{row['claim']} {[change['strategy'] for change in row['changes']]} {row['seconds']:.0f} s\n")


def judge() -> None:
    """Interleaved whole runs of the untouched script and of each patch that was not judged under its load, the latest
    first; of those whose headline has an interval."""
    for row in reversed(document()["demos"]):
        known, claim = document(), row["claim"] or {}
        if not row["patch"].strip() or claim.get("low") is None or judged(known, row) is not None:
            continue
        one = {"patch": row["patch"], "busy": row["busy"], "environment": environment(), "runs": []}
        known["judged"].append(one)

        def keep(runs: list[Run], one: dict[str, Any] = one, known: dict[str, Any] = known) -> None:
            one["runs"] = runs
            save(FILE, known)

        sides: dict[str, Side] = {**fixed_sides(DEMO), PATCHED: side_of(DEMO, row)}
        with busy(row["busy"]):
            rounds(DEMO, sides, cache(), PAIRS, keep)


def judged(known: dict[str, Any], row: dict[str, Any]) -> dict[str, Any] | None:
    """The first judgement of a demo's patch under its load that was made after it; None where there is none."""
    same = (one for one in known["judged"] if (one["patch"], one["busy"]) == (row["patch"], row["busy"]))
    return next((one for one in same if one["environment"]["at"] > row["environment"]["at"]), None)


def shown(one: dict[str, Any]) -> dict[str, Any] | None:
    """The speedup of whole runs, with its interval."""
    return ratio(logarithms(one["runs"], PATCHED))


def holds(row: dict[str, Any], seen: dict[str, Any] | None) -> str:
    """Whether the headline's interval holds the ratio, as the page has it."""
    claim = row["claim"] or {}
    if not row["changes"]:
        return "nothing claimed"
    if claim.get("low") is None:
        return "a point, no interval"
    if seen is None:
        return "not judged"
    return "yes" if claim["low"] <= seen["value"] <= claim["high"] else "**no**"


def _latest(known: dict[str, Any]) -> str:
    return str(known["demos"][-1]["revision"]) if known["demos"] else "-"


def page(results: Path) -> str:
    """The page of all demos."""
    known = document(results)
    rows = []
    for number, row in enumerate(known["demos"], 1):
        one = judged(known, row)
        seen = None if one is None else shown(one)
        load_ = row.get("note") or f"{row['busy']} busy"
        claimed = speedup(row["claim"]) if row["changes"] else "none"
        cells = [claimed, names(row["changes"]), speedup(seen) if seen else "", holds(row, seen)]
        rows.append([str(number), load_, f"{row['seconds']:.0f}", *cells])
    latest = [row[-1] for row, one in zip(rows, known["demos"], strict=True) if one["revision"] == _latest(known)]
    head = ["run", "load", "seconds", "headline", "changes", "eight pairs afterwards", "interval holds it"]
    return (
        "`make demo` in a row. Each headline stands next to eight interleaved pairs of whole runs of its patch, made "
        "afterwards under the same load. Every run is listed, in order.\n\n"
        f"Of the latest {len(latest)} runs (revision `{_latest(known)}`) {latest.count('yes')} intervals hold it.\n\n"
        "Reproduce: `python -m benchmarks.truth.demos run 5`, `run 5 --busy 1`, then `judge`.\n\n"
        f"{table(head, rows)}\n\n{machine(*(row['environment'] for row in known['demos']))}"
    )


def main() -> int:
    parser = parser_of("benchmarks.truth.demos", __doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("number", type=int)
    run.add_argument("--busy", type=int, default=0, metavar="CORES")
    commands.add_parser("judge")
    asked = parser.parse_args()
    if asked.command == "judge":
        judge()
    else:
        for _ in range(asked.number):
            demo(asked.busy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
