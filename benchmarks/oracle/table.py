"""From the readings to the document, and from the document to the page."""

from __future__ import annotations

from math import exp, log, prod
from statistics import median, quantiles
from typing import Any

from autoopt.benchmark.target import Parts, time_ratio
from autoopt.records import Estimate, Plan
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel
from benchmarks.oracle import rivals, space
from benchmarks.oracle.state import Record, State

EXAMPLES = ("photos", "stdlib_gpt", "digits")
SEARCHERS = ("autoopt", "tpe", "random")
TITLES = {"oracle": "oracle", "autoopt": "autoopt", **rivals.TITLES, "baseline": "baseline (control)"}
REPLAYS = 25
READING = ("point", "value", "step_seconds", "fixed_seconds", "seconds")
WANTED_SHARE, WANTED_SECONDS = 0.90, 0.20
RULES = {
    "share": f"the lower end of its interval is {WANTED_SHARE:.0%} of the oracle's speedup or more",
    "seconds": f"in at most {WANTED_SECONDS:.0%} of the lattice's seconds",
    "untouched": "a baseline that was left as it is shows nothing where a sampler found more",
    "samplers": "the interval of the mean ratio of both shares lies above 1",
}
"""Fixed before a run, and written into its first record."""


def document(
    state: State, environment: dict[str, Any], replays: int = REPLAYS, earlier: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All that was measured; of examples that were not, what an earlier document has.

    Args:
        environment: of the machine that writes it; each example has its own in its set-up.
    """
    examples = {name: example(state, name, replays) for name in EXAMPLES if state.of(name, "setup")}
    before = (earlier or {}).get("examples", {})
    for name, found in examples.items():
        found["earlier_runs"] = _earlier_runs(found, before.get(name))
    examples = {name: found for name in EXAMPLES if (found := examples.get(name, before.get(name))) is not None}
    found = {"schema_version": 1, "kind": "oracle", "environment": environment, "examples": examples}
    return {**found, "means": means(examples)}


def _earlier_runs(found: Record, before: Record | None) -> list[Record]:
    """The earlier choices of autoopt on the same lattice, and how each did in its race, first run first."""
    if before is None or not before.get("autoopt") or before["setup"].get("at") != found["setup"].get("at"):
        return []
    runs, own, race = before.get("earlier_runs", []), before["autoopt"], (before["race"] or {}).get("autoopt")
    if race is None or _run(found["autoopt"] or {}) == _run(own):
        return list(runs)
    return [
        *runs,
        {name: own.get(name) for name in ("commit", "seconds")} | {"told": race["told"], "share": race["share"]},
    ]


def _run(own: Record) -> tuple[Any, Any]:
    return own.get("commit"), own.get("at")


def example(state: State, name: str, replays: int = REPLAYS) -> dict[str, Any]:
    """One example, as far as it got."""
    setup = {k: v for k, v in (state.one(name, "setup") or {}).items() if k not in ("example", "stage")}
    chosen, table = state.one(name, "chosen"), state.of(name, "lattice")
    seconds = {stage: sum(r["seconds"] for r in state.of(name, stage)) for stage in ("lattice", "again", *SEARCHERS)}
    evaluations = {sampler: len(state.of(name, sampler)) for sampler in rivals.SAMPLERS}
    found: dict[str, Any] = {
        "setup": setup,
        "compile": _plain(state.one(name, "compile")),
        "measured": len(table),
        "seconds": seconds,
        "evaluations": evaluations,
        "autoopt": _plain(state.one(name, "autoopt")),
        "race": raced(setup, chosen, state.of(name, "race")) if chosen else None,
        "again": [_plain(row) for row in state.of(name, "again")],
        "lattice": [{k: row.get(k) for k in READING} for row in table],
    }
    own = state.one(name, "autoopt")
    if replays and own and len(table) == setup["points"]:
        found["replays"] = {
            sampler: _replays(sampler, setup["knobs"], table, own["seconds"], replays) for sampler in rivals.SAMPLERS
        }
    return found


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


def _replays(sampler: str, knobs: space.Knobs, table: list[Record], budget: float, count: int) -> dict[str, Any]:
    """How the sampler fares on the lattice's own readings: the best reading over its choice's, seed by seed."""
    best = min(row["value"] for row in table if row["value"] is not None)
    found = rivals.replays(sampler, knobs, rivals.table_of(table), budget, count)
    low, middle, high = quantiles([best / value for value, _ in found], n=4)
    return {"seeds": count, "median": middle, "quartiles": [low, high]}


def means(examples: dict[str, Any]) -> dict[str, Any]:
    """Geometric means over the examples whose race is complete; ``ahead``: autoopt's share over each sampler's."""
    done = [found["race"] for found in examples.values() if complete(found["race"])]
    found: dict[str, Any] = {"examples": len(done)}
    for name in SEARCHERS if done else ():
        found[name] = prod(race[name]["share"]["value"] for race in done) ** (1 / len(done))
    if done:
        found["ahead"] = {name: _ahead(done, name) for name in SEARCHERS[1:]}
    return found


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


def shown(name: str, found: dict[str, Any]) -> str:
    """Whether an example shows what is to be shown, in a sentence."""
    race = found["race"]
    if race is None or not race.get("autoopt", {}).get("share"):
        return f"`{name}`: not run to the end"
    share = race["autoopt"]["share"]
    spent = found["seconds"]["autoopt"] / found["seconds"]["lattice"]
    better = [other for other in SEARCHERS[1:] if (race.get(other, {}).get("share") or share)["value"] > share["value"]]
    left = bool(better) and not race["autoopt"]["plan"]["changes"]
    yes = share["low"] >= WANTED_SHARE and spent <= WANTED_SECONDS and not left
    text = f"{share['value']:.0%} [{share['low']:.0%}, {share['high']:.0%}] of the speedup, {spent:.0%} of the seconds"
    text += f"; the baseline was left as it is, and {TITLES[better[0]]} found more" if left else ""
    return f"`{name}`: {'shown' if yes else '**not shown**'} ({text})"
