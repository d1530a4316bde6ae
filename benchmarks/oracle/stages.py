"""The stages on one example, each of which goes on where an earlier slice left it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np

from benchmarks.documents import ROOT
from benchmarks.oracle import rivals, space
from benchmarks.oracle.race import again, race
from benchmarks.oracle.slice import OutOfTimeError, Record, Slice, State, seconds_to_target
from benchmarks.oracle.trials import Trials, trials

PROFILE_SECONDS = 8.0
LATTICE_SECONDS, SHARE = 800.0, 0.25
"""Seconds that a lattice may take, and the share of them that autoopt gets."""
OVERHEAD_SECONDS = 2.0
"""Seconds of a reading beside its steady steps, about: the start of the process and its warm-up."""
LEAST, MOST = 0.6, 8.0
AFTER_BUDGET = 8.0
"""Seconds that the command takes beside its budget: imports, the start of the server, the report."""


def set_up(s: Slice) -> None:
    """The knobs, and the steps that the baseline needs."""
    if s.of("setup"):
        return
    s.spare(120.0)
    registry = s.trials.registry
    case = s.trials.case(PROFILE_SECONDS)
    knobs = space.knobs(registry, case)
    baseline = s.trials.baseline(case)
    points = list(space.lattice(knobs))
    each = LATTICE_SECONDS / len(points) - OVERHEAD_SECONDS
    s.add(
        "setup",
        knobs=knobs,
        points=len(points),
        reading_seconds=round(min(max(each, LEAST), MOST), 2),
        target=case.objective.target,
        metric=case.objective.metric,
        deterministic=case.workload.dataset.deterministic,
        steps=baseline.steps,
        evaluation_seconds=baseline.evaluation_seconds,
        evaluate_every=baseline.evaluate_every,
        environment=case.environment.model_dump(),
    )


def measure(s: Slice, point: space.Point) -> Record:
    """One reading of a point, with its seconds to the target as ``value``."""
    found = s.trials.reading(s.plan(point), s.setup["reading_seconds"])
    value = None if "failed" in found else seconds_to_target(s.setup, found["fixed_seconds"], found["step_seconds"])
    return {"value": value, **found}


def lattice(s: Slice) -> None:
    """Every point, once, in an order drawn by lot, so that a slow quarter of an hour hits no one choice."""
    points = list(space.lattice(s.setup["knobs"]))
    order = np.random.default_rng(0).permutation(len(points))
    done = {rivals.key(record["point"]) for record in s.of("lattice")}
    for index in order:
        point = points[int(index)]
        if rivals.key(point) not in done:
            s.spare(2 * (s.setup["reading_seconds"] + OVERHEAD_SECONDS))
            s.add("lattice", point=point, **measure(s, point))


def autoopt(s: Slice) -> None:
    """The command from scratch, with the strategies of the lattice and a share of the lattice's seconds."""
    if s.of("autoopt"):
        return
    whole = SHARE * sum(record["seconds"] for record in s.of("lattice"))
    budget = max(int(whole - AFTER_BUDGET), 20)
    s.spare(budget + 60.0)
    folder = s.state.path.with_suffix("") / f"{s.example}-{time.time_ns()}"
    command = [
        *(sys.executable, "-m", "autoopt", "optimize", f"examples/{s.example}.py:build"),
        *("--budget", f"{budget}s", "--only", ",".join(space.strategies_of(s.setup["knobs"]))),
        *("--out", str(folder), "--json", "--quiet"),
    ]
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=budget + 120.0, env=dict(os.environ), check=False
    )
    seconds = time.monotonic() - began
    if done.returncode:
        s.add("autoopt", seconds=seconds, budget=budget, failed=done.stderr[-2000:])
        return
    result = json.loads(done.stdout)
    s.add(
        "autoopt",
        seconds=seconds,
        budget=budget,
        plan=result["best"]["plan"],
        commit=result["environment"]["git_commit"],
    )


STAGES: dict[str, Callable[[Slice], None]] = {
    "setup": set_up,
    "lattice": lattice,
    "again": again,
    "autoopt": autoopt,
    "race": race,
}


def run(s: Slice) -> bool:
    """Runs the stages in their order; False where the slice ran out of time before the end."""
    for name, stage in STAGES.items():
        print(f"{s.example}: {name}", file=sys.stderr, flush=True)
        try:
            stage(s)
        except OutOfTimeError:
            return False
    return True


def open_trials(example: str, state: State) -> AbstractContextManager[Trials]:
    return trials(f"examples/{example}.py:build", state.path.with_suffix("") / "logs")
