"""autoopt's plan against its rivals, each pair interleaved; then every arm to the target, until a deadline."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.records import Change, Plan
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.compare.comparison import Comparison, Rule, Side
from autoopt.search.compare.contest import compare
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial
from benchmarks.documents import ROOT
from benchmarks.sides import SideArm

OURS = "autoopt"
LEAST_SECONDS, MOST_SECONDS = 20.0, 900.0
"""Seconds to wait for building, however near the deadline is, and where there is none."""
WARM_UP_SHARE, MOST_WARM_UP = 0.25, 60.0
"""Of a comparison's seconds, what either side may take to become steady, and its limit: compilers need a minute."""
TRAIN = "benchmarks.gpu.rivals:train"

StartArm = Callable[[str], LocalTrial]
Tell = Callable[[dict[str, Any]], None]


@contextmanager
def arms(case: str, plan: Plan, *, device: str, toy: bool, deadline: float) -> Iterator[StartArm]:
    """``start(arm)``: the process of an arm of a case, built; what autoopt's plan sets before torch is set for it."""
    env = load_strategies().fold(plan).flags.get("env")
    with tempfile.TemporaryDirectory() as logs, Launcher(live="benchmarks.gpu.rivals:Served") as launcher:

        def start(arm: str) -> LocalTrial:
            spec = TrialSpec(
                workload=f"{case}:{arm}",
                plan=plan_of(arm, plan),
                device=device,
                directory=os.getcwd(),
                search_path=(str(ROOT),),
                flags={"toy": toy, **({"env": dict(env)} if arm == OURS and env else {})},
            )
            timeout = min(max(deadline - perf_counter(), LEAST_SECONDS), MOST_SECONDS)
            return launcher.start(spec, log=Path(logs) / f"{arm}.log", timeout=timeout)

        yield start


def plan_of(arm: str, plan: Plan) -> Plan:
    """autoopt's plan, or one that names the arm: comparisons know their sides by plans."""
    return plan if arm == OURS else Plan(changes=(Change(strategy=arm),))


def interleaved(start: StartArm, plan: Plan, rivals: tuple[str, ...], *, deadline: float, tell: Tell) -> dict[str, Any]:
    """autoopt's plan next to each of its rivals, in pairs of processes and interleaved blocks.

    Args:
        deadline: on ``perf_counter``; what is left is shared out evenly among the rivals that are still to come.
        tell: given what is known after each of them.
    """
    found: dict[str, Any] = {}
    for number, rival in enumerate(rivals):
        seconds = (deadline - perf_counter()) / (len(rivals) - number)
        if seconds <= 0:
            found[rival] = {"failed": "not measured: the time was up"}
            continue
        names = {plan_of(arm, plan).key: arm for arm in (OURS, rival)}

        def begin(of: Plan, label: str, names: dict[str, str] = names) -> SideArm:
            return SideArm(start(names[of.key]), of)

        warm_up = min(WARM_UP_SHARE * seconds, MOST_WARM_UP)
        rule = Rule(max_seconds=seconds, until_error=0.03, max_pairs=3, warm_up_seconds=warm_up)
        seen = compare(begin, plan, plan_of(rival, plan), rule, clock=perf_counter, deadline=perf_counter() + seconds)
        if seen.incumbent.rate is not None:
            found[OURS] = _row(seen.incumbent)
        found[rival] = _row(seen.candidate, seen) if seen.candidate.rate is not None else {"failed": seen.reason}
        tell(found)
    return found


def _row(side: Side, seen: Comparison | None = None) -> dict[str, Any]:
    row = {"samples_per_second": side.samples_per_second, "peak_memory_bytes": side.peak_memory_bytes}
    if seen is None:
        return row
    ratio = None if seen.estimate is None else seen.estimate.model_dump()
    return {**row, "over_autoopt": ratio, "mode": seen.mode}


def to_target(
    start: StartArm, names: tuple[str, ...], target: float, metric: str, every: int, *, deadline: float, tell: Tell
) -> dict[str, Any]:
    """Each arm from its first step to the target, one after the other, its start included.

    Args:
        every: steps between evaluations.
        deadline: on ``perf_counter``; what is left is shared out evenly among those that are still to come.
        tell: given what is known after each of them.
    """
    found: dict[str, Any] = {}
    for number, name in enumerate(names):
        began = perf_counter()
        seconds = (deadline - began) / (len(names) - number)
        if seconds <= 0:
            found[name] = {"failed": "not measured: the time was up"}
            continue
        try:
            with start(name) as process:
                ready = perf_counter() - began
                asked = {"target": target, "metric": metric, "every": every, "max_seconds": max(seconds - ready, 1.0)}
                answer = process.call(TRAIN, timeout=2 * max(seconds, LEAST_SECONDS), **asked)
            found[name] = {**answer, "seconds": answer["seconds"] + ready}
        except TrialFailed as error:
            found[name] = {"failed": error.reason}
        tell(found)
    return found
