"""``python -m benchmarks.hook``: the hook's cost on a step, as the median over pairs of processes in turns.

Steps are timed by the CPU time of the one thread that trains, which other programs change little.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autoopt.records import Sites
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import ScriptSpec, TrialSpec

SCRIPT = Path(__file__).with_name("steps.py")
WIDTHS = (64, 512, 1024)
_MEDIAN = re.compile(r"median ([0-9.]+) ms")


def bare(words: list[str]) -> float:
    """Milliseconds of a step of the script as it is."""
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return float(_MEDIAN.findall(printed)[-1])


def listened_to(launcher: Launcher, words: list[str], sites: Sites | None, log: Path) -> tuple[float, Sites]:
    """Milliseconds of a step of the script in a trial, and its sites, which a first run of it is watched for."""
    spec = TrialSpec(
        workload="steps", directory=str(SCRIPT.parent), script=ScriptSpec(command=tuple(words), sites=sites)
    )
    with launcher.start(spec, log=log, timeout=60.0) as process:
        if sites is None:
            return 0.0, Sites.model_validate(process.call("autoopt.script.tasks:sites", timeout=60.0))
        process.call("autoopt.benchmark.tasks:train", timeout=300.0, max_seconds=300.0)
    return float(_MEDIAN.findall(log.read_text())[-1]), sites


def measure(width: int, steps: int, pairs: int, folder: Path) -> dict[str, float]:
    """The cost on steps of one size."""
    words = [sys.executable, str(SCRIPT), str(width), str(steps)]
    ratios, plain = [], []
    with Launcher(fork_server=False) as launcher:
        _, sites = listened_to(launcher, [*words[:3], "1000000"], None, folder / "watch.log")
        for number in range(pairs):
            log = folder / f"{width}-{number}.log"
            first = bare(words) if number % 2 == 0 else None
            hooked, _ = listened_to(launcher, words, sites, log)
            before = bare(words) if first is None else first
            plain.append(before)
            ratios.append(hooked / before - 1)
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "width": width,
        "step_ms": statistics.median(plain),
        "cost": statistics.median(ratios),
        "low": quartiles[0],
        "high": quartiles[2],
        "pairs": pairs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for width in given.widths:
            print(json.dumps(measure(width, given.steps, given.pairs, Path(folder))), flush=True)


if __name__ == "__main__":
    main()
