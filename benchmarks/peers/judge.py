"""The judge: the untouched script and each tool's result, as fresh processes in turn, by a clock of nobody's."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from benchmarks.peers.fetching import HERE, SCRATCH
from benchmarks.peers.processes import environment, run
from benchmarks.peers.workloads import Workload

CLOCK = HERE / "clock"
AS_GOOD = 0.05
"""Relative difference of the mean loss over the counted steps up to which a result trains as well."""
UNTOUCHED = "untouched"
SOURCES = ("autoopt", "train-doctor", "loadtune", "pytorch-autotune", "lightning-tuner", "optuna", "tips")
"""The tools that are compared, in the order of the table; "tips": all that a page of tips names, unmeasured."""


@dataclass(frozen=True, slots=True)
class Side:
    """A side that is run: a folder with the script, or a plan that is put on the untouched one."""

    name: str
    folder: Path
    plan: Path | None = None

    def command(self, workload: Workload) -> list[str]:
        script = [sys.executable, workload.script, *workload.words]
        if self.plan is None:
            return script
        return [str(Path(sys.executable).parent / "autoopt"), "run", "--plan", str(self.plan), "--", *script]


def one_run(
    workload: Workload, side: Side, limit: float, warm_up: int | None = None, steps: int | None = None
) -> dict[str, Any]:
    """Seconds, start and losses of one fresh process; ``error`` where it did not come to its last step."""
    place = SCRATCH / "judged" / workload.name / side.name
    place.mkdir(parents=True, exist_ok=True)
    out = place / "clock.json"
    out.unlink(missing_ok=True)
    warm_up, steps = warm_up or workload.warm_up, steps or workload.steps
    counted = {"PEERS_CLOCK": str(out), "PEERS_STEPS": str(warm_up + steps)}
    variables = environment(workload, side.folder, first=str(CLOCK), PEERS_SCRIPT=Path(workload.script).name, **counted)
    began = time.time()
    ran = run(side.command(workload), side.folder, variables, place / "log.txt", limit)
    if not out.exists():
        why = f"not done in {limit:.0f} s" if ran.stopped else f"ended with {ran.code}: {ran.said[-300:]}"
        return {"side": side.name, "error": why}
    noted = json.loads(out.read_text(encoding="utf-8"))
    first, last = warm_up - 1, warm_up + steps - 1
    evaluation = noted["aside"][last] - noted["aside"][first]
    losses = [loss for loss in noted["losses"][first + 1 : last + 1] if loss is not None]
    return {
        "side": side.name,
        "seconds": noted["times"][last] - noted["times"][first] - evaluation,
        "until_counted": noted["times"][first] - began,
        "evaluation": evaluation,
        "loss": statistics.fmean(losses) if losses else None,
        "first_losses": noted["losses"][:5],
    }


def rounds(workload: Workload, sides: list[Side], number: int, limit: float, done: list[Any], save: Any) -> list[Any]:
    """Goes on with the rounds where an earlier call was cut; each side once a round, the order rotating."""
    while len(done) < number * len(sides):
        index, place = divmod(len(done), len(sides))
        order = [sides[(place + index) % len(sides)] for place in range(len(sides))]
        found = one_run(workload, order[place], limit)
        done.append({"round": index, **found})
        save(done)
    return done


def ratio(runs: list[dict[str, Any]], side: str) -> dict[str, Any] | None:
    """Geometric mean of the untouched script's seconds over a side's, round by round, with its 95 % interval."""
    logarithms = []
    for index in sorted({one["round"] for one in runs}):
        seconds = {one["side"]: one["seconds"] for one in runs if one["round"] == index and "error" not in one}
        if UNTOUCHED in seconds and side in seconds:
            logarithms.append(math.log(seconds[UNTOUCHED] / seconds[side]))
    return interval(logarithms)


def interval(logarithms: list[float]) -> dict[str, Any] | None:
    """exp of the mean of logarithms, and of Student's interval around it; bounds are None for a single one."""
    if not logarithms:
        return None
    mean, number = statistics.fmean(logarithms), len(logarithms)
    if number == 1:
        return {"value": math.exp(mean), "low": None, "high": None, "n": 1}
    half = float(student.ppf(0.975, number - 1)) * statistics.stdev(logarithms) / math.sqrt(number)
    return {"value": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half), "n": number}


def as_good(runs: list[dict[str, Any]], side: str) -> bool | None:
    """Whether the loss is within AS_GOOD of the untouched script's, or within the range of its own runs."""
    own = [one["loss"] for one in runs if one["side"] == UNTOUCHED and one.get("loss") is not None]
    its = [one["loss"] for one in runs if one["side"] == side and one.get("loss") is not None]
    if not own or not its:
        return None
    mean, found = statistics.fmean(own), statistics.fmean(its)
    return abs(found - mean) <= AS_GOOD * abs(mean) or min(own) <= found <= max(own)


def verdict(workload: dict[str, Any], rival: str) -> tuple[str, float | None]:
    """A tool's result on a script in words, and the logarithm that counts in a mean; None where it cannot run it."""
    outcome = workload["rivals"][rival]
    if outcome is None:
        return "-", None
    if outcome["status"] == "cannot":
        return "cannot", None
    if outcome["status"] in ("nothing", "stopped", "failed"):
        return {"nothing": "no change", "stopped": "no result in time", "failed": "broke"}[outcome["status"]], 0.0
    runs = workload["judged"]["runs"]
    found = ratio(runs, rival)
    if found is None:
        broke = [one["error"] for one in runs if one["side"] == rival and "error" in one]
        late = next((error for error in broke if error.startswith("not done in")), None)
        return late or ("its result does not run" if broke else "not judged"), (0.0 if broke else None)
    shown = f"{found['value']:.2f}×"
    if found["low"] is not None:
        shown += f" [{found['low']:.2f}, {found['high']:.2f}]"
    if as_good(runs, rival) is False:
        return f"other losses ({shown})", 0.0
    return shown, math.log(found["value"])
