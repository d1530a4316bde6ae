"""Scaling to two processes of a CPU, a thread each: autoopt's ratio beside that of a script by hand, with intervals.

python -m benchmarks.distributed --seconds 170      # alone on the machine; ends within that time
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS, ROOT, environment, parser_of, save
from benchmarks.whole_runs.figures import ratio

WORKLOAD = Path(__file__).parent / "workload.py"
ENDING = 8.0
"""Seconds in which the last pair's blocks and processes come to their end."""


def by_hand(processes: int, seconds: float) -> float:
    """Samples per second of the script by hand; each process computes with one thread, as torchrun has it."""
    script = ["-m", "benchmarks.distributed.by_hand", "--seconds", f"{seconds:g}"]
    start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    path = os.pathsep.join([str(ROOT), str(ROOT / "strategies"), str(ROOT / "reports")])
    done = subprocess.run(
        [sys.executable, *start, *script],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found["samples_per_second"]


def ratio_by_hand(seconds: float) -> dict[str, Any]:
    """Two processes over one, run by run in turns, with a t interval of the mean log-ratio.

    A further pair of runs is not begun that would not end in time, but three there are.
    """
    clock = time.monotonic
    end, logs, longest = clock() + seconds, [], 0.0
    while clock() + longest < end or len(logs) < 3:
        began = clock()
        order = (1, 2) if len(logs) % 2 else (2, 1)
        rates = {count: by_hand(count, 3.0) for count in order}
        logs.append(math.log(rates[2] / rates[1]))
        longest = max(longest, clock() - began)
    return ratio(logs) or {}


def ratio_by_autoopt(seconds: float) -> dict[str, Any]:
    """The same, compared as every candidate is: pairs of process groups in interleaved blocks."""
    import numpy as np

    from autoopt.records import Change, Plan
    from autoopt.search.compare.comparison import Rule
    from autoopt.search.compare.contest import compare
    from benchmarks.runners import runner_of

    two = Plan(changes=(Change(strategy="ddp", setting={"processes": 2}),))
    with runner_of(f"{WORKLOAD}:build") as runner:
        rule = Rule(min_gain=0.01, max_seconds=seconds, until_error=0.01)
        rng = np.random.default_rng(0)
        end = time.monotonic() + seconds
        found = compare(runner.start, Plan(), two, rule, clock=time.monotonic, deadline=end, rng=rng)
    if found.estimate is None:
        raise SystemExit(f"not measured: {found.reason}")
    reported = found.estimate
    return {"value": reported.value, "low": reported.low, "high": reported.high, "n": reported.n}


def main() -> None:
    """Measures both, one after the other, and writes them down."""
    parser = parser_of("benchmarks.distributed", __doc__, RESULTS / "distributed.json")
    parser.add_argument("--seconds", type=float, default=170.0, help="for both together, about")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # two threads on two shared cores wait for each other, at times long
    end = time.monotonic() + options.seconds
    found = {"by_hand": ratio_by_hand(options.seconds / 2)}
    found["autoopt"] = ratio_by_autoopt(end - time.monotonic() - ENDING)
    save(options.out, {**found, "processes": 2, "environment": environment()})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
