"""The choices against one another: the lattice's best once more, and the final race of all."""

from __future__ import annotations

import numpy as np

from autoopt.records import Plan
from benchmarks.oracle import rivals
from benchmarks.oracle.slice import Record, Slice, seconds_to_target

TOP, AGAIN_ROUNDS, ROUNDS = 5, 2, 4
"""Points of the lattice that are measured again, and pairs of processes of each then and in the final race."""


def again(s: Slice) -> None:
    """The best points once more, in pairs with the baseline; each round begins with another."""
    ranked = sorted((r for r in s.of("lattice") if r["value"] is not None), key=lambda record: record["value"])
    _pairs(s, "again", [s.plan(record["point"]) for record in ranked[:TOP]], AGAIN_ROUNDS)


def contestants(s: Slice) -> dict[str, Plan]:
    """The choice of each rival; the baseline against itself is the control."""
    found = {"baseline": Plan(), "oracle": best_again(s)}
    chosen = s.state.one(s.example, "autoopt")
    if chosen is not None and "plan" in chosen:
        found["autoopt"] = Plan.model_validate(chosen["plan"])
    for sampler in rivals.SAMPLERS:
        table = rivals.table_of(s.of("lattice"))
        ranked = rivals.replays(sampler, s.setup["knobs"], table, chosen["seconds"]) if chosen is not None else []
        if ranked:
            found[sampler] = s.plan(ranked[len(ranked) // 2])
    return found


def best_again(s: Slice) -> Plan:
    """The winner of the second measurement, among those whose losses stay the baseline's."""
    groups: dict[str, list[Record]] = {}
    for record in (r for r in s.of("again") if "unmeasured" not in r):
        groups.setdefault(Plan.model_validate(record["plan"]).key, []).append(record)
    sound = {k: rows for k, rows in groups.items() if all(row.get("same_losses") for row in rows)}
    if not sound:
        return Plan()

    def gain(rows: list[Record]) -> float:
        """Seconds to the target over the baseline's in the same pairs; geometric mean."""
        return float(np.mean([np.log(saved(s.setup, row)) for row in rows]))

    winner = max(sound.values(), key=gain)
    return Plan.model_validate(winner[0]["plan"])


def saved(setup: Record, row: Record) -> float:
    """The speedup to the target that one pair of processes shows."""
    step = row["baseline_step_seconds"]
    before = seconds_to_target(setup, row["baseline_fixed_seconds"], step)
    return before / seconds_to_target(setup, row["fixed_seconds"], step / float(np.exp(row["log_ratio"])))


def race(s: Slice) -> None:
    """All choices in pairs with the baseline, round after round; equal setups run once for all who chose them."""
    distinct: dict[str, Plan] = {}
    chosen = contestants(s)
    for plan in chosen.values():
        distinct.setdefault(_setup(s, plan), plan)
    if not s.of("chosen"):
        ran = {name: distinct[_setup(s, plan)].key for name, plan in chosen.items()}
        plans = {name: plan.model_dump() for name, plan in chosen.items()}
        s.add("chosen", plans=plans, ran=ran, replayed=[name for name in rivals.SAMPLERS if name in plans])
    _pairs(s, "race", list(distinct.values()), ROUNDS)


def _setup(s: Slice, plan: Plan) -> str:
    """Equal for plans that train in the same way."""
    return repr(s.trials.registry.fold(plan))


def _pairs(s: Slice, stage: str, plans: list[Plan], rounds: int) -> None:
    done = {(record["round"], Plan.model_validate(record["plan"]).key) for record in s.of(stage)}
    for number in range(rounds):
        for index in np.random.default_rng(number).permutation(len(plans)):
            plan = plans[int(index)]
            if (number, plan.key) in done:
                continue
            s.spare(45.0)
            row = s.trials.pair(plan, len(plans) * number + int(index), deterministic=s.setup["deterministic"])
            s.add(stage, round=number, plan=plan.model_dump(), **row)
