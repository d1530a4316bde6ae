"""The stages on one example, each of which goes on where an earlier slice left it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from autoopt.records import Change, Plan
from autoopt.strategy import Case
from benchmarks.oracle import rivals, space
from benchmarks.oracle.race import again, race
from benchmarks.oracle.slice import Slice, seconds_to_target
from benchmarks.oracle.state import OutOfTimeError, Record, State
from benchmarks.oracle.table import RULES
from benchmarks.oracle.trials import Trials, trials

ROOT = Path(__file__).resolve().parents[2]
PROFILE_SECONDS = 8.0
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
    unknown = sorted(set(s.without) - set(knobs))
    if unknown:
        raise SystemExit(f"--without {unknown[0]}: {s.example} has no such knob; it has {', '.join(knobs)}")
    knobs = {name: choices for name, choices in knobs.items() if name not in s.without}
    baseline = s.trials.baseline(case)
    points = list(space.lattice(knobs))
    each = s.lattice_seconds / len(points) - OVERHEAD_SECONDS
    s.add(
        "setup",
        knobs=knobs,
        without=dict(s.without),
        left_out=space.left_out(registry, case, knobs),
        points=len(points),
        reading_seconds=round(min(max(each, LEAST), MOST), 2),
        target=case.objective.target,
        metric=case.objective.metric,
        deterministic=case.workload.dataset.deterministic,
        steps=baseline.steps,
        evaluation_seconds=baseline.evaluation_seconds,
        evaluate_every=baseline.evaluate_every,
        compile=_compile_setting(s, case),
        environment=case.environment.model_dump(),
        settings={name: getattr(s, name) for name in ("lattice_seconds", "top", "rounds", "replays", "share")},
        rules=RULES,
    )


def _compile_setting(s: Slice, case: Case) -> Record | None:
    """The cheapest way to compile; None where it does not apply."""
    strategy = s.trials.registry["compile"]
    return next(iter(strategy.settings(case))) if strategy.applies(case) else None


def compiling(s: Slice) -> None:
    """One-off cost of compiling: whether it could pay at all."""
    setting = s.setup["compile"]
    if setting is None or s.of("compile"):
        return
    s.spare(90.0)
    plan = Plan(changes=(Change(strategy="compile", setting=setting),))
    s.add("compile", setting=setting, **s.trials.compiling(plan))


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
    whole = s.share * sum(record["seconds"] for record in s.of("lattice"))
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
        told=result["speedup"],
        stop=result["stop"],
        commit=result["environment"]["git_commit"],
        warnings=result["warnings"],
        trials=[_trial(trial) for trial in result["trials"] if trial["verdict"] != "not_applicable"],
    )


def _trial(trial: Record) -> Record:
    return {
        **{name: trial[name] for name in ("strategy", "setting", "companions", "verdict", "reason", "seconds")},
        "throughput": trial["throughput"],
    }


def rival(s: Slice, sampler: str) -> None:
    """A study for as many seconds as autoopt's whole run took; its own start is not charged."""
    if s.replays:
        return
    found = s.state.one(s.example, "autoopt")
    assert found is not None, "the budget is what autoopt took"
    history = s.of(sampler)
    spent = sum(record["seconds"] for record in history)
    study = rivals.Rival(sampler, s.setup["knobs"], 0, history)
    while spent < found["seconds"]:
        s.spare(2 * (s.setup["reading_seconds"] + OVERHEAD_SECONDS))
        began = time.monotonic()
        turn = study.turn(lambda point: measure(s, point))
        turn["seconds"] = time.monotonic() - began
        spent += turn["seconds"]
        s.add(sampler, **turn)


STAGES: dict[str, Callable[[Slice], None]] = {
    "setup": set_up,
    "lattice": lattice,
    "again": again,
    "autoopt": autoopt,
    "tpe": lambda s: rival(s, "tpe"),
    "random": lambda s: rival(s, "random"),
    "race": race,
    "compile": compiling,
}


def run(s: Slice, until: str = "compile") -> bool:
    """Runs the stages in their order; False where the slice ran out of time before the end."""
    for name, stage in STAGES.items():
        s.say(f"{s.example}: {name}")
        try:
            stage(s)
        except OutOfTimeError:
            return False
        if name == until:
            break
    return True


def open_trials(example: str, state: State) -> AbstractContextManager[Trials]:
    return trials(f"examples/{example}.py:build", ROOT, state.path.with_suffix("") / "logs")
