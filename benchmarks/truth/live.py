"""The live part of truth.py: placebos, planted effects and overhead on this machine."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from autoopt.records import Change, Noise, Plan
from autoopt.records.protocol import TrialSpec
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import Comparison, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control, learned
from autoopt.trial.parent import Launcher
from benchmarks.documents import environment
from benchmarks.truth import workload as truth_workload

ROOT = Path(__file__).resolve().parents[2]
RULE = Rule(max_seconds=45.0, max_pairs=8, warm_up_seconds=3.0)
Save = Callable[[], None]


def burn(left: float) -> Plan:
    return Plan(changes=(Change(strategy="burn", setting={"left": left}),))


class Starter:
    """Starts trials of the live workload."""

    def __init__(self, launcher: Launcher, logs: Path) -> None:
        self._launcher, self._logs, self._count = launcher, logs, 0

    def __call__(self, plan: Plan, label: str) -> TrialArm:
        self._count += 1
        spec = TrialSpec(
            workload="benchmarks.truth.workload:build",
            plan=plan,
            strategies=("benchmarks.truth.workload:Burn",),
            directory=str(ROOT),
            search_path=(str(ROOT),),
        )
        log = self._logs / f"{self._count:04d}-{label}.log"
        return TrialArm(self._launcher.start(spec, log=log, timeout=120.0), plan)


@contextmanager
def starter() -> Iterator[Starter]:
    with tempfile.TemporaryDirectory() as logs, Launcher() as launcher:
        yield Starter(launcher, Path(logs))


def known_noise(live: dict[str, Any]) -> Noise:
    return Noise.model_validate(live.get("noise", {}))


def _measured(start: Starter, live: dict[str, Any], incumbent: Plan, candidate: Plan, deadline: float) -> Comparison:
    """One comparison, after an A/A control where there was none yet; keeps the variance between processes it shows."""
    if not live.get("noise"):
        noise, first = control(start, Plan(), RULE, clock=time.monotonic, deadline=deadline)
        live["noise"] = noise.model_dump()
        live["startup_seconds"] = (
            float(np.median([pair.startup_seconds for pair in first.pairs])) if first.pairs else None
        )
    rng = np.random.default_rng(time.time_ns())
    noise = known_noise(live)
    found = compare(start, incumbent, candidate, RULE, clock=time.monotonic, deadline=deadline, noise=noise, rng=rng)
    after = learned(noise, found)
    live["noise"] = after.model_dump()
    return found


def _row(found: Comparison, true: float) -> dict[str, Any] | None:
    """One comparison as the document keeps it; None where the time was too short for one pair of processes."""
    estimate = found.estimate
    if estimate is None:
        sys.stderr.write(f"the live comparison came to nothing: {found.reason}\n")
        return None
    return {
        "true": true,
        "value": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "decision": found.decision.value,
        "block_seconds": sum(row.seconds for row in found.rows),
        "wall_seconds": found.seconds,
        "pairs": [pair.log_ratio for pair in found.pairs],
        "errors": [pair.standard_error for pair in found.pairs],
        "disturbed": found.disturbed_share,
        "between_process_sd": found.between_process_sd,
    }


def placebos(document: dict[str, Any], wanted: int, deadline: float, save: Save) -> None:
    """Compares the workload with itself until there are ``wanted``; starts none that may not finish."""
    live = document.setdefault("live", {})
    rows = live.setdefault("placebos", [])
    with starter() as start:
        while len(rows) < wanted and time.monotonic() + 30 < deadline:
            found = _measured(start, live, Plan(), Plan(), time.monotonic() + RULE.max_seconds)
            row = _row(found, 1.0)
            if row:
                rows.append({**row, "environment": environment()})
            save()


def calibrated(live: dict[str, Any], save: Save) -> float:
    """Cost of a step beside its work, in units of the work; measured once on each kind of processor."""
    cpu = environment()["cpu"]
    known = live.setdefault("calibration", {})
    if cpu not in known:
        known[cpu] = {**truth_workload.calibrate(), "environment": environment()}
        save()
    return float(known[cpu]["rest"])


def sequential(start: Starter, plans: tuple[Plan, Plan], seconds: float) -> float:
    """ "A for half the time, then B for the other half", one process each: the speedup that it finds."""
    rates = []
    for plan in plans:
        arm = start(plan, "sequential")
        try:
            arm.ready()
            arm.warm_up(RULE.warm_up_seconds)
            block = arm.block(seconds / 2, RULE.min_steps, 0.0)
        finally:
            arm.close()
        rates.append(block.samples / block.seconds)
    return rates[1] / rates[0]


def effects(document: dict[str, Any], wanted: list[float], repeats: int, deadline: float, save: Save) -> None:
    """Compares planted effects with the untouched workload, then spends the same seconds on A and after it on B."""
    live = document.setdefault("live", {})
    found_so_far = live.setdefault("effects", {})
    rest = calibrated(live, save)
    with starter() as start:
        for number in range(repeats):
            for effect in wanted:
                rows = found_so_far.setdefault(f"{effect:g}", [])
                if len(rows) > number:
                    continue
                if time.monotonic() + 30 > deadline:
                    return
                plans = Plan(), burn(truth_workload.left_for(effect, rest))
                before = environment()
                found = _measured(start, live, *plans, time.monotonic() + RULE.max_seconds)
                row = _row(found, effect)
                if row:
                    row["sequential"] = sequential(start, plans, sum(row.seconds for row in found.rows))
                    rows.append({**row, "environment": before})
                save()


def overhead(document: dict[str, Any], workloads: list[str], deadline: float, save: Save) -> None:
    """The instrumented loop beside a bare one: alternating blocks in one process, several processes.

    Goes on where it ended, on the same kind of processor.
    """
    from benchmarks.truth import overhead as truth_overhead

    rows = document.setdefault("overhead", [])
    for workload in workloads:
        here = environment()
        known = [row for row in rows if row["workload"] == workload and row["environment"]["cpu"] == here["cpu"]]
        found = list(known[0]["found"]) if known else []
        while len(found) < truth_overhead.PROCESSES and time.monotonic() < deadline:
            found.append(truth_overhead.another(workload))
            rows[:] = [row for row in rows if row["workload"] != workload]
            rows.append({**truth_overhead.summary(workload, found), "environment": here})
            save()
