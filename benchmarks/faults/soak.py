"""Hundreds of short trials with faults mixed in: the parent's memory, processes and descriptors stay flat.

``python -m benchmarks.faults.soak --trials 300`` prints a line for every 25 trials and, at the end, what grew: the
growth per trial is the slope of a straight line through the second half, when everything is warm.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from autoopt.trial import shared
from autoopt.trial.parent import Launcher
from benchmarks.documents import parser_of
from benchmarks.faults.__main__ import provoke
from benchmarks.faults.cases import FAULTS, Fault, tiny

GROWTH_BYTES = 20_000
"""Bytes a trial by which the parent may seem to grow: what an allocator keeps for itself scatters by as much."""


def main() -> int:
    parser = parser_of("benchmarks.faults.soak", __doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = random.Random(options.seed).choices(mixture(), k=options.trials)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        tempfile.tempdir = folder
        figures = soak(chosen, Path(folder))
    print(json.dumps(figures, indent=1))
    return 0 if figures["flat"] else 1


def mixture() -> list[Fault]:
    """Every second trial is sound; hangs are rare, since each takes its time limit."""
    faults = [fault for fault in FAULTS if fault.seconds is None] * 3 + [fault for fault in FAULTS if fault.seconds]
    sound = tiny("reseed_in_build", "survived")
    return faults + [sound] * len(faults)


def soak(chosen: list[Fault], folder: Path) -> dict[str, object]:
    """Runs the trials and measures the parent after each."""
    me = psutil.Process()
    memory, descriptors, processes, wrong = [], [], [], []
    before = shared.names()
    began = time.monotonic()
    with Launcher() as launcher:
        for number, fault in enumerate(chosen, 1):
            seen = provoke(launcher, fault, folder)
            if not seen.passed:
                wrong.append(f"{seen.fault}: {seen.outcome} ({seen.reason}); left {seen.left}")
            gc.collect()
            memory.append(me.memory_info().rss)
            descriptors.append(me.num_fds())
            processes.append(len(me.children(recursive=True)))
            if number % 25 == 0 or number == len(chosen):
                print(
                    f"{number:5} trials  {memory[-1] / 2**20:7.1f} MiB  {descriptors[-1]} descriptors  "
                    f"{processes[-1]} processes  {time.monotonic() - began:5.0f} s  {len(wrong)} wrong",
                    flush=True,
                )
    half = len(chosen) // 2
    growth = float(np.polyfit(range(half, len(chosen)), memory[half:], 1)[0])
    left = [child.pid for child in me.children(recursive=True)]
    return {
        "trials": len(chosen),
        "seconds": round(time.monotonic() - began, 1),
        "memory_mib": {"first": memory[0] / 2**20, "half": memory[half] / 2**20, "last": memory[-1] / 2**20},
        "memory_growth_bytes_per_trial": round(growth),
        "descriptors": {"first": descriptors[0], "most": max(descriptors), "last": descriptors[-1]},
        "processes": {"first": processes[0], "most": max(processes), "last": processes[-1], "at_the_end": len(left)},
        "shared_memory_left": sorted(shared.names() - before),
        "temporary_files_left": sorted(name for name in os.listdir(folder) if name.startswith(("autoopt-", "pymp-"))),
        "wrong": wrong,
        "flat": bool(
            growth < GROWTH_BYTES
            and max(descriptors[half:]) <= max(descriptors[:half])
            and max(processes) <= 1
            and not left
            and not wrong
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
