"""autoopt beside its rivals on scripts that exist elsewhere; what is fixed beforehand stands in the package.

    python -m benchmarks.peers fetch                        # the scripts, at their revisions
    python -m benchmarks.peers.sites WORKLOAD               # what autoopt finds in it, without timing anything
    python -m benchmarks.peers search WORKLOAD RIVAL --budget 160
    python -m benchmarks.peers judge WORKLOAD --rounds 4    # call again to go on
    python -m benchmarks.peers collect                      # benchmarks/results/peers.json

Run it on a machine that does nothing else. PEERS_MIRROR names a folder of git directories to read instead of GitHub,
PEERS_TOOLS the folder of train-doctor's command; loadtune and pytorch-autotune are to be importable.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import environment, save
from benchmarks.peers import judge, rivals
from benchmarks.peers.fetching import SCRATCH, UnfetchedError, fetch
from benchmarks.peers.rivals import RIVALS
from benchmarks.peers.workloads import WORKLOADS, Workload

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"


def sides_of(workload: Workload) -> list[judge.Side]:
    """The untouched script, and every result of a tool that was told to search."""
    folder = fetch(workload)
    sides = [judge.Side(judge.UNTOUCHED, folder)]
    for rival in RIVALS:
        if not (rivals.place(workload, rival) / "outcome.json").exists():
            continue
        outcome = rivals.search(workload, rival, 0.0)
        if outcome.patch:
            patched = rivals.copy_of(workload, rival, "patched")
            file = rivals.place(workload, rival) / "result.diff"
            file.write_text(outcome.patch, encoding="utf-8")
            why = rivals.put_on(file, patched)
            if why is None:
                sides.append(judge.Side(rival, patched))
                continue
            rivals.note(workload, rival, patch_refused=why)
        known = rivals.with_known_sites(workload)
        if outcome.plan and known:
            plan = known[1] / f"plan-{rival}.json"
            rivals.write_plan(plan, outcome.plan)
            sides.append(judge.Side(rival, known[0], plan))
    return sides


def judged(workload: Workload, number: int, limit: float, seconds: float) -> None:
    """Goes on with the rounds of one script, as far as the seconds go."""
    file = SCRATCH / "judged" / f"{workload.name}.json"
    document = (
        json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"runs": [], "environment": environment()}
    )
    deadline = time.monotonic() + seconds

    def keep(runs: list[Any]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**document, "runs": runs}), encoding="utf-8")
        sys.stderr.write(json.dumps(runs[-1])[:300] + "\n")
        if time.monotonic() > deadline:
            raise SystemExit(0)

    sides = sides_of(workload)
    judge.rounds(workload, sides, number, limit, document["runs"], keep)


def collect() -> dict[str, Any]:
    """Everything that was found and judged, as one document; what was not done again here stays as it was."""
    known = json.loads(RESULTS.read_text(encoding="utf-8"))["workloads"] if RESULTS.exists() else []
    earlier = {(row["name"], row["blob"]): row for row in known}
    document: dict[str, Any] = {"schema_version": 1, "environment": environment(), "workloads": []}
    for workload in WORKLOADS.values():
        file = SCRATCH / "judged" / f"{workload.name}.json"
        before = earlier.get((workload.name, workload.blob), {"judged": {"runs": []}, "rivals": {}, "met": None})
        one = json.loads(file.read_text(encoding="utf-8")) if file.exists() else before["judged"]
        row: dict[str, Any] = {
            "name": workload.name,
            "kind": workload.kind,
            "source": list(workload.source),
            "blob": workload.blob,
            "command": [workload.script, *workload.words],
            "stand_in": workload.stand_in,
            "steps": [workload.warm_up, workload.steps],
            "judged": one,
            "rivals": {},
        }
        met = SCRATCH / "sites" / f"{workload.name}.json"
        row["met"] = json.loads(met.read_text(encoding="utf-8")) if met.exists() else before["met"]
        for rival in RIVALS:
            outcome = rivals.place(workload, rival) / "outcome.json"
            found = json.loads(outcome.read_text(encoding="utf-8")) if outcome.exists() else before["rivals"].get(rival)
            row["rivals"][rival] = found
        document["workloads"].append(row)
    found: dict[str, Any] = json.loads(_of_no_place(json.dumps(document)))
    return found


def _of_no_place(text: str) -> str:
    """The same with files of libraries named from their packages on, and others from this repository's root on."""
    text = re.sub(r'/[^"\s]*/(?:site-packages|peers/site)/', "", text)
    return text.replace(f"{ROOT}/", "")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch")
    searching = commands.add_parser("search")
    searching.add_argument("workload", choices=WORKLOADS)
    searching.add_argument("rival", choices=RIVALS)
    searching.add_argument("--budget", type=float, default=160.0)
    searching.add_argument("--again", action="store_true", help="search anew; what it had found is told beside it")
    judging = commands.add_parser("judge")
    judging.add_argument("workload", choices=WORKLOADS)
    judging.add_argument("--rounds", type=int, default=4)
    judging.add_argument("--limit", type=float, default=90.0, help="seconds of one process")
    judging.add_argument("--seconds", type=float, default=1e9, help="seconds of this call; call again to go on")
    commands.add_parser("collect")
    given = parser.parse_args()
    if given.command == "fetch":
        for workload in WORKLOADS.values():
            try:
                print(workload.name, fetch(workload))
            except UnfetchedError as error:
                print(workload.name, "not fetched:", error)
    elif given.command == "search":
        outcome = rivals.search(WORKLOADS[given.workload], given.rival, given.budget, given.again)
        print(given.workload, given.rival, outcome.status, f"{outcome.seconds:.0f} s", outcome.said)
    elif given.command == "judge":
        judged(WORKLOADS[given.workload], given.rounds, given.limit, given.seconds)
    else:
        save(RESULTS, collect())


if __name__ == "__main__":
    main()
