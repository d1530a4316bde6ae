"""Names and numbers of a run for trackers, the same for all of them, and what they were sent before a resume."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from autoopt.records import Configuration, Estimate, Result, Trial, Verdict
from autoopt.records.writing import write_whole

FILES = ("result.json", "plan.json", "optimized_train.py")


_NUMBERS = (
    "samples_per_second", "metric", "peak_memory_bytes", "device_utilization", "cpu_utilization", "mfu",
    "energy_joules_per_step", "cost_to_target",
)  # fmt: skip
"""Of a configuration, as they are."""


def of_estimate(name: str, estimate: Estimate | None) -> dict[str, float]:
    """An estimate with its interval; nothing where it was not measured."""
    if estimate is None:
        return {}
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


def of_configuration(prefix: str, configuration: Configuration) -> dict[str, float]:
    """Every number that was measured of a configuration."""
    step = configuration.step_seconds
    values = {name: getattr(configuration, name) for name in _NUMBERS} | {"step_seconds": step.p50 if step else None}
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
    headline = result.speedup.headline
    if headline is not None:
        values["speedup/headline"] = headline.value
        known = {name: getattr(headline, name) for name in ("low", "high", "n", "baseline_seconds", "best_seconds")}
        # a point has no bounds
        values |= {f"speedup/headline_{name}": float(value) for name, value in known.items() if value is not None}
    values |= of_estimate("speedup/throughput", result.speedup.throughput)
    values |= of_estimate("speedup/time_to_target", result.speedup.time_to_target)
    return values | {"seconds": result.seconds}


FILE = "trackers.json"


class Memory:
    """One tracker's part of ``trackers.json`` in a run directory.

    A file that is missing or damaged is an empty one: the tracker then begins another run.

    Args:
        directory: of the run.
        kind: of tracker.
    """

    def __init__(self, directory: Path, kind: str) -> None:
        self._path, self._kind = directory / FILE, kind
        self._mine: dict[str, Any] = _read(self._path).get(kind, {})

    @property
    def run(self) -> str | None:
        """The tracker's own name of the run; None before it has one."""
        return self._mine.get("run")

    def begin(self, run: str) -> None:
        """Another run of the tracker."""
        self._mine = {"run": run}
        self._save()

    def child(self, name: str) -> str | None:
        """The tracker's own name of a trial's run."""
        found = self._mine.get("children", {}).get(name)
        return None if found is None else str(found)

    def keep_child(self, name: str, run: str) -> None:
        self._mine.setdefault("children", {})[name] = run
        self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: a resumed run begins another of the tracker, the run goes on
            write_whole(self._path, json.dumps({**_read(self._path), self._kind: self._mine}, indent=1))


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    whole = isinstance(found, dict) and all(isinstance(part, dict) for part in found.values())
    return found if whole else {}
