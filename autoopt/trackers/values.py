"""Names and numbers of a run for trackers; the same for all of them."""

from __future__ import annotations

import json

from autoopt.records import Configuration, Estimate, Result, Trial, Verdict

FILES = ("result.json", "plan.json", "optimized_train.py")


def of_estimate(name: str, estimate: Estimate | None) -> dict[str, float]:
    """An estimate with its interval; nothing where it was not measured."""
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def of_configuration(prefix: str, configuration: Configuration) -> dict[str, float]:
    """Every number that was measured of a configuration."""
    step = configuration.step_seconds
    values = {
        "samples_per_second": configuration.samples_per_second,
        "step_seconds": step.p50 if step else None,
        "metric": configuration.metric,
        "peak_memory_bytes": configuration.peak_memory_bytes,
        "device_utilization": configuration.device_utilization,
        "cpu_utilization": configuration.cpu_utilization,
        "mfu": configuration.mfu,
        "energy_joules_per_step": configuration.energy_joules_per_step,
        "cost_to_target": configuration.cost_to_target,
    }
    found = {f"{prefix}/{name}": float(value) for name, value in values.items() if value is not None}
    return found | of_estimate(f"{prefix}/time_to_target_seconds", configuration.time_to_target_seconds)


def name_of(trial: Trial) -> str:
    """The name of a trial's own run; of what was not tried, its strategy's alone."""
    return (
        trial.strategy
        if trial.verdict in (Verdict.NOT_TRIED, Verdict.NOT_APPLICABLE)
        else f"{trial.id} {trial.strategy}"
    )


def of_trial(trial: Trial) -> tuple[dict[str, str], dict[str, float]]:
    """A trial's words and numbers."""
    words = {
        "strategy": trial.strategy,
        "setting": json.dumps(trial.setting, sort_keys=True),
        "companions": ", ".join(change.strategy for change in trial.companions),
        "verdict": str(trial.verdict),
        "reason": trial.reason,
        "risk": trial.risk or "",
        "base": trial.base,
        "round": str(trial.round),
    }
    numbers = of_estimate("throughput", trial.throughput) | of_estimate("time_to_target", trial.time_to_target)
    numbers |= of_estimate("predicted", trial.predicted)
    for name in ("seconds", "peak_memory_bytes", "samples_per_second"):
        value = getattr(trial, name)
        if value is not None:
            numbers[name] = float(value)
    return {name: value for name, value in words.items() if value}, numbers


def of_result(result: Result) -> dict[str, float]:
    """The numbers of a finished run."""
    values = of_configuration("baseline", result.baseline) | of_configuration("best", result.best)
    values |= _of_headline(result)
    values |= of_estimate("speedup/throughput", result.speedup.throughput)
    values |= of_estimate("speedup/time_to_target", result.speedup.time_to_target)
    return values | {"seconds": result.seconds}


def _of_headline(result: Result) -> dict[str, float]:
    """The record of the first screen; a point has no bounds."""
    headline = result.speedup.headline
    if headline is None:
        return {}
    names = ("low", "high", "n", "baseline_seconds", "best_seconds")
    known = {f"speedup/headline_{name}": getattr(headline, name) for name in names}
    values = {"speedup/headline": headline.value, **known}
    return {name: float(value) for name, value in values.items() if value is not None}
