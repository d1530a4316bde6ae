"""Whole runs whose list holds nothing but placebos: in how many of them is any kept?

Rules and settings are fixed before the run and stand in the result. A machine in simulated time; each plan's processes
scatter alike (``equal``), or one plan in four four times as much as the others (``unequal``).
"""

from __future__ import annotations

import time
from math import log
from typing import Any

import numpy as np

from autoopt.records import Change, Noise, Plan
from autoopt.search.compare.comparison import Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control, learned
from autoopt.search.compare.sequential_test import alpha_of
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel

PLACEBOS = 20
MOST_KEPT = 0.05
RULE = Rule(max_seconds=120.0, more_seconds=120.0)
CALM, JUMPY = 0.015, 0.06
"""Standard deviation of a process (log): two differ by 1.4 times as much. The second is of every fourth plan, where
processes are unequal."""


def one_run(kind: str, spread: str, seed: int, effects: tuple[float, ...] = (1.0,) * PLACEBOS) -> list[dict[str, Any]]:
    """An A/A control and then each candidate against the baseline, under the run's error budget."""

    def behave(plan: Plan) -> Behaviour:
        number = int(plan.changes[0].setting["number"]) if plan.changes else -1
        jumpy = spread == "unequal" and number >= 0 and number % 4 == 3
        effect = effects[number] if number >= 0 else 1.0
        return Behaviour(step_seconds=0.02 / effect, process_sd=JUMPY if jumpy else CALM)

    fake, rng = FakeMachine(behave=behave, noise=NoiseModel(kind), seed=seed), np.random.default_rng([seed, 2])  # type: ignore[arg-type]
    noise: Noise = control(fake.start, Plan(), RULE, clock=fake.clock, rng=rng)[0]
    found: list[dict[str, Any]] = []
    for number, effect in enumerate(effects):
        plan = Plan(changes=(Change(strategy="placebo", setting={"number": number}),))
        kept = sum(row["kept"] for row in found)
        rule = RULE.model_copy(update={"alpha_accept": alpha_of(number, kept)})
        seen = compare(fake.start, Plan(), plan, rule, clock=fake.clock, noise=noise, rng=rng)
        noise = learned(noise, seen)
        estimate = seen.estimate
        found.append(
            {
                "effect": effect,
                "kept": seen.decision is Decision.ACCEPT,
                "covered": estimate is not None and estimate.low <= effect <= estimate.high,
                "error": log(estimate.value / effect) if estimate else None,
                "pairs": len(seen.pairs),
            }
        )
    return found


def measure(spread: str, kind: str, runs: int) -> dict[str, Any]:
    """So many runs, with the rule that judges them."""
    began = time.monotonic()
    found = [one_run(kind, spread, seed) for seed in range(runs)]
    with_any = sum(any(row["kept"] for row in rows) for rows in found)
    covered = [row["covered"] for rows in found for row in rows]
    return {
        "rule": f"any placebo of {PLACEBOS} is kept in at most {MOST_KEPT:.0%} of runs",
        "comparison": RULE.model_dump(),
        "kind": kind,
        "spread": spread,
        "runs": runs,
        "placebos": PLACEBOS,
        "runs_with_any_kept": with_any,
        "share": with_any / runs,
        "holds": with_any <= MOST_KEPT * runs,
        "coverage": float(np.mean(covered)),
        "seconds": time.monotonic() - began,
    }
