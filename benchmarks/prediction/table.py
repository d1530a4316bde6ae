"""From what prediction.py measured to its figures: everything predicted is computed here, by the code as it is now."""

from __future__ import annotations

import statistics
from typing import Any

from autoopt.records import Estimate, Peaks, Plan, Round
from autoopt.records.messages import Block
from autoopt.registry import Registry, load_strategies
from autoopt.search.compare.comparison import Comparison
from autoopt.search.planner import predict
from autoopt.simplify.analyse import analyse, build_round
from autoopt.simplify.bottleneck import ceiling_step, stage_ceilings
from autoopt.simplify.drift import normalized_to_running
from autoopt.simplify.pipeline import Pipeline
from autoopt.simplify.stage_profile import Description, StageProfile
from autoopt.simplify.stage_timings import StageTimings
from benchmarks.prediction.cases import CHANGES, Change
from benchmarks.prediction.planted import Plant, plants
from benchmarks.prediction.run import case_of

Rows = list[dict[str, Any]]


def tables(done: dict[str, Any]) -> dict[str, Any]:
    """The figures of all cases that were measured so far."""
    registry = load_strategies()
    found: dict[str, Any] = {
        "planted": [
            plant_row(plant, done[f"plant:{plant.name}"]) for plant in plants() if f"plant:{plant.name}" in done
        ],
        "steps": [step_row(name, done[name], done) for name in done if name.startswith("step:")],
        "gains": [gain_row(change, done, registry) for change in CHANGES if _ready(change, done)],
    }
    return {"summary": summary(**found), **found}


def _ready(change: Change, done: dict[str, Any]) -> bool:
    return change.name in done and f"step:{change.workload}:0" in done


def plant_row(plant: Plant, document: dict[str, Any]) -> dict[str, Any]:
    """Whether the planted bottleneck was named, and whether the chain below it ends at its line."""
    peaks = Peaks.model_validate(document["peaks"])
    timings = normalized_to_running(StageTimings.model_validate(document["timings"]))
    block = Block.model_validate(document["block"])
    round_ = analyse(0, Plan(), timings, block, peaks)
    right = round_.bottleneck in plant.bottleneck if plant.bottleneck else round_.bottleneck is None
    last = next((item for item in reversed(round_.deeper) if item.line is not None), None)
    return {
        "name": plant.name,
        "bottleneck": round_.bottleneck,
        "class": round_.bottleneck_class,
        "right": bool(right and plant.kind in (None, round_.bottleneck_class)),
        "line": None if plant.line is None else bool(last and last.line == plant.line),
        **_simulated(round_),
        "foreign_cores": document.get("foreign_cores"),
        "violations": violations(round_, timings, peaks, round_.step_seconds),
    }


def step_row(name: str, document: dict[str, Any], done: dict[str, Any]) -> dict[str, Any]:
    """The step simulated from its stages beside the step measured."""
    workload = name.split(":")[1]
    description, profile = (
        Description.model_validate(document["description"]),
        StageProfile.model_validate(document["profile"]),
    )
    round_, _ = build_round(description, profile)
    timings = normalized_to_running(StageTimings.model_validate(profile.timings))
    peaks = description.environment.peaks
    fastest = min([round_.step_seconds, *_steps_seen(workload, done)])
    return {
        "name": name,
        "bottleneck": round_.bottleneck,
        "class": round_.bottleneck_class,
        **_simulated(round_),
        "foreign_cores": profile.foreign_cores,
        "violations": violations(round_, timings, peaks, fastest),
    }


def _simulated(round_: Round) -> dict[str, Any]:
    return {
        "step_seconds": round_.step_seconds,
        "simulated_seconds": round_.predicted_step_seconds,
        "error": round_.simulation_error,
        "ceiling_seconds": round_.ceiling_step_seconds,
    }


def _steps_seen(workload: str, done: dict[str, Any]) -> list[float]:
    """The step under each change of the same work: a larger batch is more work, and a cache less."""
    other = ("batch_size", "prepared_samples")
    same = [c for c in CHANGES if c.workload == workload and "comparison" in done.get(c.name, {})]
    documents = [done[change.name]["comparison"] for change in same if change.strategy not in other]
    sides = [Comparison.model_validate(document).candidate for document in documents]
    return [side.step_seconds.p50 for side in sides if side.step_seconds]


def violations(round_: Round, timings: StageTimings, peaks: Peaks, best_step: float) -> list[str]:
    """Stages that were measured faster than the ceiling computed for them, and the step likewise."""
    ceilings = stage_ceilings(timings, peaks)
    seconds = {stage.name: stage.seconds for stage in round_.stages}
    if timings.backward is not None:  # a difference of two: where noise swallows it, its upper quartile speaks
        seconds["backward"] = timings.backward.seconds * (1 + timings.backward.spread) * timings.accumulation
    found = [
        f"{name}: {value:.3g} s under its ceiling {ceilings[name]:.3g} s"
        for name, value in seconds.items()
        if ceilings.get(name, 0.0) > value * 1.0001
    ]
    step = ceiling_step(Pipeline(round_), timings, peaks)
    if step is not None and best_step < step:
        found.append(f"step: {best_step:.3g} s under its ceiling {step:.3g} s")
    return found


def gain_row(change: Change, done: dict[str, Any], registry: Registry) -> dict[str, Any]:
    """The gain predicted before anything is tried beside the one measured."""
    if "refused" in done[change.name]:
        return {"name": change.name.removeprefix("gain:"), "side": change.side, "predicted": None, "realized": None,
                "error": None, "reason": f"does not apply: {done[change.name]['refused']}"}  # fmt: skip
    comparison = Comparison.model_validate(done[change.name]["comparison"])
    row: dict[str, Any] = {"name": change.name.removeprefix("gain:"), "side": change.side, "predicted": None,
           "realized": None, "error": None, "reason": comparison.reason}  # fmt: skip
    estimate = _once(change, done, registry, 0)
    if comparison.estimate is None:
        return row
    row |= {
        "pairs": len(comparison.pairs),
        "seconds": comparison.seconds,
        "realized": comparison.estimate.value,
        "low": comparison.estimate.low,
        "high": comparison.estimate.high,
    }
    if estimate is None:
        return row
    inside = estimate.low <= comparison.estimate.high and comparison.estimate.low <= estimate.high
    return row | {
        "predicted": estimate.value,
        "predicted_low": estimate.low,
        "predicted_high": estimate.high,
        "predicted_on_all_looks": _on_all_looks(change, done, registry),
        "error": estimate.value / comparison.estimate.value - 1.0,
        "agrees": inside,
    }


def _on_all_looks(change: Change, done: dict[str, Any], registry: Registry) -> float | None:
    """The median of what is predicted on each occasion on which the workload was looked at; beside what is scored."""
    numbers = [int(name.split(":")[2]) for name in done if name.startswith(f"step:{change.workload}:")]
    found = [_once(change, done, registry, number) for number in numbers]
    return _median([estimate.value for estimate in found if estimate])


def _once(change: Change, done: dict[str, Any], registry: Registry, number: int) -> Estimate | None:
    case = case_of(change.workload, done, registry, number)
    if change.strategy == "graph":
        return case.pipeline.gain(**change.setting) if case.pipeline else None
    return predict(registry[change.strategy], case, change.setting)


def summary(planted: Rows, steps: Rows, gains: Rows) -> dict[str, Any]:
    """The figures that stand for the whole."""
    errors = [abs(row["error"]) for row in (*planted, *steps)]
    lines = [row["line"] for row in planted if row["line"] is not None]
    found: dict[str, Any] = {
        "named_right": f"{sum(row['right'] for row in planted)} of {len(planted)}",
        "line_found": f"{sum(lines)} of {len(lines)}",
        "step_error_median": _median(errors),
        "step_error_worst": max(errors, default=None),
        "ceilings_violated": sum(len(row["violations"]) for row in (*planted, *steps)),
    }
    for side in ("input", "compute"):
        missed = [abs(row["error"]) for row in gains if row["side"] == side and row["error"] is not None]
        found[f"{side}_gain_error_median"] = _median(missed)
        found[f"{side}_gain_error_worst"] = max(missed, default=None)
        found[f"{side}_gains"] = len(missed)
    return found


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
