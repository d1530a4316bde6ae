"""Whole runs of the sides of a case: fresh processes from start to end, interleaved in an order drawn by lot."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from benchmarks.whole_runs.cases import Case, CaseError
from benchmarks.whole_runs.figures import EXPERT, PATCHED, UNTOUCHED

LIMIT = 900.0
"""Seconds of one run; the longest takes 40 on two free cores, and this many only where something hangs."""

Run = dict[str, Any]


def sides_of(case: Case, patched: Path | None) -> dict[str, Path]:
    """The script of each side; the patched one is the ``train.py`` of a folder.

    Raises:
        CaseError: the folder has no such script.
    """
    sides = {UNTOUCHED: case.folder / "train.py", EXPERT: case.folder / "expert.py"}
    if patched is not None:
        if not (patched / "train.py").is_file():
            raise CaseError(f"no patched script: {patched} holds no train.py (give `none` to judge the expert alone)")
        sides[PATCHED] = patched / "train.py"
    return sides


def rounds(
    case: Case,
    sides: dict[str, Path],
    data: Path,
    number: int,
    keep: Callable[[list[Run]], None],
    words: Sequence[str] = (),
    rng: random.Random | None = None,
) -> list[Run]:
    """Runs every side once a round; ``keep`` gets all runs after each.

    All sides of a round get the same seed, drawn for it. A run that fails ends the judging: its record has ``error``.

    Args:
        words: further words of the command, the same for every side.
        rng: draws seeds and orders; the system's own by default, so that no seed is known beforehand.
    """
    draw = rng or random.SystemRandom()
    runs: list[Run] = []
    with copies(sides) as folders:
        for index in range(number):
            seed = draw.randrange(1, 2**31)
            for side in draw.sample(sorted(sides), len(sides)):
                command = [sys.executable, folders[side].name, "--data", str(data), "--seed", str(seed), *words]
                found = whole_run(case, command, folders[side].parent)
                runs.append({"round": index, "side": side, "seed": seed, **found})
                keep(runs)
                if found["error"] is not None:
                    return runs
    return runs


@contextmanager
def copies(sides: dict[str, Path]) -> Iterator[dict[str, Path]]:
    """Each side's script in a folder of its own, with the other files of the patched tree beside it."""
    with tempfile.TemporaryDirectory(prefix="whole-runs-") as place:
        found = {}
        for side, script in sides.items():
            folder = Path(place) / side
            folder.mkdir()
            if side == PATCHED:
                shutil.copytree(script.parent, folder, dirs_exist_ok=True)
            else:
                shutil.copy(script, folder)
            found[side] = folder / script.name
        yield found


def whole_run(case: Case, command: Sequence[str], folder: Path) -> Run:
    """One process from start to end: its seconds, metric, its own CPU seconds and those of other programs."""
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    before, began = cpu_times(with_children=False), time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return {"seconds": None, "metric": None, "error": f"not at its end after {LIMIT:.0f} s"}
    seconds, after = time.monotonic() - began, cpu_times(with_children=False)
    record = {
        "seconds": seconds,
        "cpu_seconds": after.own - before.own,
        "other_cpu_seconds": foreign_seconds(before, after),
        "metric": None,
    }
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return {**record, "error": f"ended with {done.returncode}: {last}"}
    metric = case.read(done.stdout + done.stderr)
    error = None if metric is not None else f"printed no {case.metric!r}"
    return {**record, "metric": metric, "error": error}
