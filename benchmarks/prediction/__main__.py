"""Is the right bottleneck named, is the simulated step the measured one, do predictions come true?

    python -m benchmarks.prediction --seconds 400        # measures what is still missing; call again to go on
    python -m benchmarks.prediction --table --out FILE   # the figures of what was measured so far

Planted pipelines: each has one stage made the bottleneck by a known amount. Workloads: the step simulated and
measured, looked at several times. Changes: each predicted on the baseline's graph, then measured beside the baseline
in pairs of processes. What was measured is kept in ``--state``, a line for each case; what is predicted is computed
from it by the code as it is. A case during which others used the machine is measured again by the next call. Run it
on a machine that does nothing else; it says under what load it ran.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autoopt.simplify.stage_profile import FOREIGN_CORES
from benchmarks.documents import RESULTS, ROOT, environment, parser_of, save
from benchmarks.prediction.cases import names

STATE = ROOT / "autoopt-runs" / "prediction.jsonl"


def load(state: Path) -> dict[str, Any]:
    """Documents by case; the latest of each."""
    lines = state.read_text(encoding="utf-8").splitlines() if state.exists() else []
    records = [json.loads(line) for line in lines]
    return {record["name"]: record for record in records}


def missing(wanted: list[str], done: dict[str, Any]) -> list[str]:
    """Cases that were not measured yet, then those during which other programs used the machine."""
    disturbed = [name for name in wanted if name in done and (foreign_cores(done[name]) or 0.0) > FOREIGN_CORES]
    return [*(name for name in wanted if name not in done), *disturbed]


def foreign_cores(document: dict[str, Any]) -> float | None:
    """Cores that others used while a case was looked at; None where it is not known, and for pairs of processes."""
    found: float | None = document.get("profile", document).get("foreign_cores")
    return found


def run(state: Path, wanted: list[str], seconds: float) -> None:
    """Measures the cases that are missing, one after the other, until the time is up."""
    from benchmarks.prediction import run as prediction_run

    state.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + seconds
    done = load(state)
    for name in missing(wanted, done):
        if time.monotonic() >= end:
            return
        began, load_before = time.monotonic(), os.getloadavg()[0]
        try:
            document = prediction_run.measure(name, done)
        except Exception as error:  # one case that fails must not hide the others
            sys.stderr.write(f"{name}: {type(error).__name__}: {error}\n")
            continue
        done[name] = {"name": name, "load_before": load_before, "seconds": time.monotonic() - began, **document}
        with state.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[name]) + "\n")
        sys.stderr.write(f"{name}: {done[name]['seconds']:.0f} s\n")


def main() -> None:
    parser = parser_of("benchmarks.prediction", __doc__, RESULTS / "prediction.json")
    parser.add_argument("--seconds", type=float, default=400.0, help="start no case after so long")
    parser.add_argument("--only", default="", help="cases whose name begins with one of these, separated by commas")
    parser.add_argument("--steps", type=int, default=3, help="how many times each workload is looked at")
    parser.add_argument("--state", type=Path, default=STATE, help="what was measured so far")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    parser.add_argument("--list", action="store_true", help="the cases, those that are missing marked")
    options = parser.parse_args()
    begins = tuple(filter(None, options.only.split(",")))
    wanted = [name for name in names(options.steps) if not begins or name.startswith(begins)]
    if options.list:
        done = load(options.state)
        left = set(missing(wanted, done))
        sys.stdout.write("".join(f"{'-' if name in left else ' '} {name}\n" for name in wanted))
        return
    if not options.table:
        run(options.state, wanted, options.seconds)
    from benchmarks.prediction import table as prediction_table

    done = load(options.state)
    document = prediction_table.tables(done)
    print(json.dumps(document["summary"], indent=1))
    if done:
        loads = [record["load_before"] for record in done.values()]
        machine = {**environment(), "torch": version("torch"), "load_before": [min(loads), max(loads)]}
        save(options.out, {**document, "environment": machine})


if __name__ == "__main__":
    main()
