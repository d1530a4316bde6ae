"""From the readings to the document, and from the document to the page."""

from __future__ import annotations

from math import exp, log
from statistics import median
from typing import Any

from autoopt.benchmark.target import Parts, time_ratio
from autoopt.records import Estimate, Plan
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel
from benchmarks.oracle import space
from benchmarks.oracle.slice import Record, State

EXAMPLES = ("photos", "stdlib_gpt", "digits")
SEARCHERS = ("autoopt", "tpe", "random")
READING = ("point", "value", "step_seconds", "fixed_seconds", "seconds")


def document(state: State, environment: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """All that was measured; of examples that were not, what an earlier document has.

    Args:
        environment: of the machine that writes it; each example has its own in its set-up.
    """
    known = {name: example(state, name) for name in EXAMPLES if state.of(name, "setup")}
    every = {**earlier.get("examples", {}), **known}
    examples = {name: every[name] for name in EXAMPLES if name in every}
    found = {"schema_version": 1, "kind": "oracle", "environment": environment, "examples": examples}
    return {**found, "means": means(examples)}


def example(state: State, name: str) -> dict[str, Any]:
    """One example, as far as it got."""
    setup = _plain(state.one(name, "setup")) or {}
    chosen, table = state.one(name, "chosen"), state.of(name, "lattice")
    seconds = {stage: sum(r["seconds"] for r in state.of(name, stage)) for stage in ("lattice", "again", "autoopt")}
    return {
        "setup": setup,
        "seconds": seconds,
        "autoopt": _plain(state.one(name, "autoopt")),
        "race": raced(setup, chosen, state.of(name, "race")) if chosen else None,
        "again": [_plain(row) for row in state.of(name, "again")],
        "lattice": [{k: row.get(k) for k in READING} for row in table],
    }


def _plain(record: Record | None) -> Record | None:
    return None if record is None else {k: v for k, v in record.items() if k not in ("example", "stage")}


def raced(setup: Record, chosen: Record, rows: list[Record]) -> dict[str, Any]:
    """By contestant: its plan, speedups over the baseline, and its share of the oracle's."""
    by_plan: dict[str, list[Record]] = {}
    for row in rows:
        by_plan.setdefault(Plan.model_validate(row["plan"]).key, []).append(row)
    control = _good(by_plan.get(chosen["ran"]["baseline"], []))
    between = BetweenProcess().after([r["log_ratio"] for r in control], [r["standard_error"] for r in control])
    found = {}
    for name, plan in chosen["plans"].items():
        result = _speedups(setup, by_plan.get(chosen["ran"][name], []), between)
        found[name] = {"plan": plan, "told": space.told(Plan.model_validate(plan)), **result}
    for name, result in found.items():
        same = chosen["ran"][name] == chosen["ran"]["oracle"]
        result["same_as_oracle"] = same
        result["replayed"] = name in chosen["replayed"]
        result["share"] = _share(result, found["oracle"], same)
    return found


def _good(rows: list[Record]) -> list[Record]:
    return [row for row in rows if "log_ratio" in row]


def _speedups(setup: Record, rows: list[Record], between: BetweenProcess) -> dict[str, Any]:
    """Of throughput and of the time to target, from all pairs of a plan with the baseline."""
    good = _good(rows)
    failed = next((row["failed"] for row in rows if "failed" in row), None)
    if not good or failed:
        return {"time_to_target": None, "throughput": None, "failed": failed or "not measured"}
    lost = next((row["losses"] for row in good if row["same_losses"] is False), None)
    level = TwoLevel([row["log_ratio"] for row in good], [row["standard_error"] for row in good], between)
    low, high = level.interval()
    throughput = Estimate(value=exp(level.value), low=exp(low), high=exp(high), n=level.n)
    step = median(row["baseline_step_seconds"] for row in good)
    rest = (setup["steps"], setup["evaluation_seconds"], setup["evaluate_every"])
    before = Parts(median(row["baseline_fixed_seconds"] for row in good), step, *rest)
    after = Parts(median(row["fixed_seconds"] for row in good), step / throughput.value, *rest)
    ratio = time_ratio(before, after, throughput)
    return {
        "throughput": throughput.model_dump(),
        "time_to_target": ratio.model_dump(),
        "seconds_to_target": after.seconds,
        "baseline_seconds_to_target": before.seconds,
        "quality_lost": lost,
    }


def _share(result: dict[str, Any], oracle: dict[str, Any], same: bool) -> dict[str, float] | None:
    """Its time-to-target speedup over the oracle's; the interval takes both as independent."""
    one, other = result["time_to_target"], oracle["time_to_target"]
    if one is None or other is None or result.get("quality_lost"):
        return None
    if same:
        return {"value": 1.0, "low": 1.0, "high": 1.0}
    value = one["value"] / other["value"]
    width = sum(log(e["high"] / e["low"]) ** 2 for e in (one, other)) ** 0.5 / 2
    return {"value": value, "low": value * exp(-width), "high": value * exp(width)}


def means(examples: dict[str, Any]) -> dict[str, Any]:
    """Over the examples whose race is complete: autoopt's share over each sampler's, geometric mean."""
    done = [found["race"] for found in examples.values() if complete(found["race"])]
    return {"examples": len(done), "ahead": {name: _ahead(done, name) for name in SEARCHERS[1:] if done}}


def _ahead(races: list[dict[str, Any]], name: str) -> dict[str, float]:
    """autoopt's share over a sampler's: geometric mean over examples, with the interval that their races leave it."""
    logs = [log(race["autoopt"]["share"]["value"] / race[name]["share"]["value"]) for race in races]
    widths = [
        log(race[who]["share"]["high"] / race[who]["share"]["low"]) / 2 for race in races for who in ("autoopt", name)
    ]
    value, reach = sum(logs) / len(races), sum(width**2 for width in widths) ** 0.5 / len(races)
    return {"value": exp(value), "low": exp(value - reach), "high": exp(value + reach)}


def complete(race: dict[str, Any] | None) -> bool:
    return race is not None and all(race.get(name, {}).get("share") for name in SEARCHERS)
