"""``python -m benchmarks.hook``: the hook's cost on a step, as the median over pairs of processes in turns.

Steps are timed by the CPU time of the one thread that trains, which other programs change little. Sizes take turns
until the time is up, so that each has as many pairs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from autoopt.records import Sites
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.trial.parent import Launcher

SCRIPT = Path(__file__).with_name("steps.py")
WIDTHS = (64, 512, 1024)
FEWEST = 2
"""Pairs of each size, whatever the time."""
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


def pair(launcher: Launcher, words: list[str], sites: Sites, log: Path, bare_first: bool) -> tuple[float, float]:
    """Milliseconds of a step bare and listened to."""
    first = bare(words) if bare_first else None
    hooked, _ = listened_to(launcher, words, sites, log)
    return (bare(words) if first is None else first), hooked


def measure(widths: Sequence[int], each: float, seconds: float, folder: Path) -> dict[int, list[tuple[float, float]]]:
    """Pairs by width.

    Args:
        each: seconds that a process trains for.
        seconds: no round of all widths is begun that would not end by then.
    """
    began, longest = time.monotonic(), 0.0
    found: dict[int, list[tuple[float, float]]] = {width: [] for width in widths}
    with Launcher() as launcher:
        _, sites = listened_to(launcher, _words(widths[0], 1e6), None, folder / "watch.log")
        for number in itertools.count():
            start = time.monotonic()
            if number >= FEWEST and start - began + longest > seconds:
                return found
            for width in widths:
                log = folder / f"{width}-{number}.log"
                found[width].append(pair(launcher, _words(width, each), sites, log, number % 2 == 0))
            longest = max(longest, time.monotonic() - start)
    raise AssertionError("counting never ends")


def _words(width: int, seconds: float) -> list[str]:
    return [sys.executable, str(SCRIPT), str(width), str(seconds)]


def row(width: int, pairs: list[tuple[float, float]]) -> dict[str, float]:
    """The cost on steps of one size: the median of the pairs' shares of a step, and their quartiles."""
    shares = [hooked / plain - 1 for plain, hooked in pairs]
    quartiles = statistics.quantiles(shares, n=4)
    return {
        "width": width,
        "step_ms": statistics.median(plain for plain, _ in pairs),
        "cost_us": 1000 * statistics.median(hooked - plain for plain, hooked in pairs),
        "cost": statistics.median(shares),
        "low": quartiles[0],
        "high": quartiles[2],
        "pairs": len(pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=140.0)
    parser.add_argument("--each", type=float, default=1.5, help="seconds that a process trains for")
    parser.add_argument("--widths", type=int, nargs="*", default=WIDTHS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(given.widths, given.each, given.seconds, Path(folder))
    for width, pairs in found.items():
        print(json.dumps(row(width, pairs)), flush=True)


if __name__ == "__main__":
    main()
