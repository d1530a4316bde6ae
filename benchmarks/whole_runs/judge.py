"""Whole runs of the sides of a case: fresh processes from start to end, interleaved in an order drawn by lot."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoopt.script.whole_run import Command, CommandRun, run_time_sliced
from benchmarks.whole_runs.cases import Case
from benchmarks.whole_runs.figures import EXPERT, UNTOUCHED

LIMIT = 900.0
"""Seconds of one run; the longest takes 60 on two free cores, and this many only where something hangs."""

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Side:
    """A script to run.

    Attributes:
        tree: the folder that it lies in, or lies below.
        script: its path in the tree.
        alone: whether it is run without the other files of the tree.
        variables: of the environment, which a tool asks for.
    """

    tree: Path
    script: str
    alone: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)


def fixed_sides(case: Case) -> dict[str, Side]:
    """The untouched script, and the expert's where there is one."""
    alone = not case.below
    sides = {UNTOUCHED: Side(case.folder, case.script, alone)}
    return sides if case.expert is None else {**sides, EXPERT: Side(case.folder, case.expert, alone)}


def rounds(
    case: Case,
    sides: Mapping[str, Side],
    data: Path,
    number: int,
    keep: Callable[[list[Run]], None],
    words: Sequence[str] = (),
    rng: random.Random | None = None,
) -> list[Run]:
    """Runs every side once a round, by turns, so that all see the same machine; then ``keep`` gets all runs.

    All sides of a round get the same seed, drawn for it. A side that fails is not run again: its record has ``error``.
    Without the untouched script or the expert's, there is nothing to compare with, and the judging ends.

    Args:
        words: further words of the command, the same for every side.
        rng: draws seeds and orders; the system's own by default, so that no seed is known beforehand.
    """
    draw = rng or random.SystemRandom()
    runs: list[Run] = []
    left = sorted(sides)
    with copies(case, sides) as trees:
        for index in range(number):
            seed = draw.randrange(1, 2**31)
            order = draw.sample(left, len(left))
            commands = []
            for side in order:
                words_of = tuple(case.command(sides[side].script, data, seed, words))
                variables = {**case.environment(trees[side]), **sides[side].variables}
                commands.append(Command(words_of, folder=trees[side] / case.below, variables=variables))
            for side, found in zip(order, whole_runs(case, commands), strict=True):
                runs.append({"round": index, "side": side, "seed": seed, **found})
                if found["error"] is not None:
                    left = [name for name in left if name != side]
            keep(runs)
            if UNTOUCHED not in left or (EXPERT in sides and EXPERT not in left):
                return runs
    return runs


@contextmanager
def copies(case: Case, sides: Mapping[str, Side]) -> Iterator[dict[str, Path]]:
    """A copy of each side's files in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="whole-runs-") as place:
        found = {}
        for name, side in sides.items():
            found[name] = Path(place) / name
            if side.alone:
                found[name].mkdir()
                shutil.copy(side.tree / side.script, found[name])
            else:
                shutil.copytree(side.tree, found[name])
        yield found


def whole_runs(case: Case, commands: Sequence[Command], limit: float = LIMIT) -> list[Run]:
    """Processes from start to end, by turns. One that fails does not end the others.

    Returns:
        Of each its seconds and those until its first step, its metric and samples, its own CPU seconds and those of
        other programs.
    """
    return [_record(case, found, limit) for found in run_time_sliced(commands, timeout=limit, all_of_them=True)]


def _record(case: Case, found: CommandRun, limit: float) -> Run:
    firsts = (at for at, line in found.lines if case.first is not None and re.search(case.first, line))
    counted = re.findall(case.samples, found.output) if case.samples is not None else []
    metric = case.read(found.output)
    record = {
        "seconds": found.seconds,
        "first_seconds": next(firsts, None),
        "samples": int(counted[-1]) if counted else None,
        "cpu_seconds": found.own_cpu_seconds,
        "other_cpu_seconds": found.foreign_cpu_seconds,
        "metric": None if found.code else metric,
    }
    if found.code is None:
        return {**record, "seconds": None, "error": f"not at its end after {limit:.0f} s"}
    if found.code != 0:
        return {**record, "error": f"ended with {found.code}: {found.last}"}
    return {**record, "error": None if metric is not None else f"printed no {case.metric!r}"}
