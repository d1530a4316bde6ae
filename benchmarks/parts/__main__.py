"""``python -m benchmarks.parts``: whole runs of three scripts, predicted from their parts and run bare beside it."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autoopt.benchmark.target import whole_run_seconds
from autoopt.records import Plan, RunParts, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Startup
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.simplify.analyse import run_parts, with_watched
from autoopt.simplify.stage_timings import StageTimings
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial

HERE = Path(__file__).parent
TASKS = "autoopt.benchmark.tasks"
WITHIN = 0.15
"""Wanted: predicted seconds over those of a bare run, less 1, at most so far from 0."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=HERE.parent / "results" / "parts.json")
    parser.add_argument("--rounds", type=int, default=3, help="bare runs and predictions of each script, in turns")
    parser.add_argument("scripts", nargs="*", type=Path, default=sorted((HERE / "scripts").glob("*.py")))
    given = parser.parse_args()
    rows = []
    for script in given.scripts:
        found = [_once(script) for _ in range(given.rounds)]
        bare = statistics.median(seconds for seconds, _, _ in found)
        runs = [whole_run_seconds(parts) for _, _, parts in found]
        predicted = statistics.median(run.seconds for run in runs)
        rows.append(
            {
                "script": script.stem,
                "bare_seconds": [seconds for seconds, _, _ in found],
                "bare_cpu_seconds": [cpu for _, cpu, _ in found],
                "load": os.getloadavg(),
                "predicted_seconds": [run.seconds for run in runs],
                "error": predicted / bare - 1,
                "within": abs(predicted / bare - 1) <= WITHIN,
                "run": runs[-1].model_dump(),
            }
        )
        print(f"{script.stem}: predicted {predicted:.1f} s, bare {bare:.1f} s, error {predicted / bare - 1:+.0%}")
        for part in runs[-1].parts:
            print(f"  {part.name:<22}{part.seconds:8.2f} s  {part.share:5.0%}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({"within": WITHIN, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    return 0 if all(row["within"] for row in rows) else 1


def _once(script: Path) -> tuple[float, float, RunParts]:
    """Seconds of a bare run, its CPU seconds, and the parts that were measured right after it.

    Where the CPU seconds are far below those of the wall clock other programs were at work, and nothing is shown.
    """
    with tempfile.TemporaryDirectory(prefix="parts-") as folder:
        shutil.copy(script, folder)
        began, before = time.monotonic(), os.times()
        subprocess.run([sys.executable, script.name], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        bare, after = time.monotonic() - began, os.times()
        cpu = after.children_user - before.children_user + after.children_system - before.children_system
        return bare, cpu, _parts(script.name, Path(folder))


def _parts(script: str, folder: Path) -> RunParts:
    with Launcher(fork_server=False) as launcher:

        def started(label: str, sites: Sites | None) -> LocalTrial:
            spec = TrialSpec(
                workload=script,
                plan=Plan(),
                directory=str(folder),
                seed=0,
                script=ScriptSpec(command=(sys.executable, script), sites=sites, folders=(str(folder),)),
            )
            return launcher.start(spec, log=folder / f"{label}.log", timeout=120.0)

        with started("watched", None) as process:
            sites = Sites.model_validate(process.call("autoopt.script.tasks:sites", timeout=120.0))
        with started("measured", sites) as process:
            facts: WorkloadFacts = process.ready.facts
            startup = Startup.model_validate(process.call(f"{TASKS}:warm_up", timeout=120.0, max_seconds=10.0))
            block = Block.model_validate(process.call(f"{TASKS}:run_block", timeout=120.0, seconds=1.5, min_steps=8))
    timings = StageTimings(device="cpu", cores=1, threads=1, workers=0, batch_size=1)
    facts = facts.model_copy(update={"run": sites.run})
    return run_parts(facts, startup, block, with_watched(timings, sites.run))


if __name__ == "__main__":
    sys.exit(main())
