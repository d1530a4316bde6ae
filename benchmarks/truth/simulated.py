"""The simulated part of truth.py: comparisons on machines whose noise and true effects are known."""

from __future__ import annotations

import time
from collections import Counter
from math import log
from typing import Any

import numpy as np

from autoopt.records import Change, Plan
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control, learned
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel

EFFECTS = (0.97, 1.0, 1.03, 1.1, 1.3, 1.5, 3.0)
PER_RUN = 5
STEP = 0.02
RULE = Rule(max_seconds=300.0)
INCUMBENT, CANDIDATE = Plan(), Plan(changes=(Change(strategy="candidate"),))
SEQUENTIAL_SECONDS = (3.0, 6.0, 12.0, 24.0, 48.0, 96.0, 192.0, 384.0)


def machine(effect: float, kind: str, seed: int) -> FakeMachine:
    def behave(plan: Plan) -> Behaviour:
        return Behaviour(step_seconds=STEP / effect if plan.changes else STEP)

    return FakeMachine(behave=behave, noise=NoiseModel(kind), seed=seed)  # type: ignore[arg-type]


def after_control(fake: FakeMachine, rule: Rule, rng: np.random.Generator) -> Comparison:
    """One comparison after an A/A control of two pairs, as a command makes it."""
    noise, _ = control(fake.start, INCUMBENT, rule, clock=fake.clock, pairs=2, rng=rng)
    return compare(fake.start, INCUMBENT, CANDIDATE, rule, clock=fake.clock, noise=noise, rng=rng)


def comparisons(effect: float, kind: str, runs: int) -> list[Comparison]:
    """So many runs: an A/A control, then comparisons that each tell more of the variance between processes."""
    found = []
    for seed in range(runs):
        fake, rng = machine(effect, kind, seed), np.random.default_rng([seed, 1])
        noise, _ = control(fake.start, INCUMBENT, RULE, clock=fake.clock, rng=rng)
        for _ in range(PER_RUN):
            one = compare(
                fake.start,
                INCUMBENT,
                CANDIDATE,
                RULE,
                clock=fake.clock,
                noise=noise,
                rng=rng,
                deadline=fake.clock() + RULE.max_seconds,
            )
            noise = learned(noise, one)
            found.append(one)
    return found


def _block_seconds(found: Comparison) -> float:
    return sum(row.seconds for row in found.rows)


def summary(effect: float, found: list[Comparison]) -> dict[str, Any]:
    """Decisions, coverage, error, and seconds until decided (block time of both sides; wall-clock)."""
    estimates = [one.estimate for one in found if one.estimate]
    decided = [one for one in found if one.decision is not Decision.INCONCLUSIVE]
    errors = [log(estimate.value / effect) for estimate in estimates]
    return {
        "effect": effect,
        "comparisons": len(found),
        "decisions": dict(Counter(one.decision.value for one in found)),
        "coverage": float(np.mean([e.low <= effect <= e.high for e in estimates])),
        "half_width": float(np.median([log(e.high / e.low) / 2 for e in estimates])),
        "rms_error": float(np.sqrt(np.mean(np.square(errors)))),
        "block_seconds": float(np.median([_block_seconds(one) for one in found])),
        "wall_seconds": float(np.median([one.seconds for one in found])),
        "decided": len(decided) / len(found),
        "block_seconds_decided": float(np.median([_block_seconds(one) for one in decided])) if decided else None,
        "pairs": float(np.median([len(one.pairs) for one in found])),
    }


def sequential(effect: float, kind: str, seconds: float, repeats: int) -> float:
    """RMS error (log) of "A for half the time, then B for the other half", one process each."""
    errors = []
    for seed in range(repeats):
        fake = machine(effect, kind, 10_000 + seed)
        rates = []
        for plan in (INCUMBENT, CANDIDATE):
            arm = fake.start(plan, "sequential")
            arm.ready()
            arm.warm_up(60.0)
            samples, spent = 0, 0.0
            while spent < seconds / 2:
                block = arm.block(0.3, 4, 0.0)
                samples, spent = samples + block.samples, spent + block.seconds
            arm.close()
            rates.append(samples / spent)
        errors.append(log(rates[1] / rates[0] / effect))
    return float(np.sqrt(np.mean(np.square(errors))))


def needed(curve: dict[str, float], error: float) -> float | None:
    """The shortest time whose error is no larger; None where no time of the curve reaches it."""
    return next((float(seconds) for seconds, rms in curve.items() if rms <= error), None)


def measure(kind: str, runs: int) -> dict[str, Any]:
    """All effects under one kind of noise."""
    began = time.monotonic()
    curve = {str(seconds): sequential(1.1, kind, seconds, 100) for seconds in SEQUENTIAL_SECONDS}
    rows = []
    for effect in EFFECTS:
        row = summary(effect, comparisons(effect, kind, runs if effect == 1.0 else max(runs // 4, 10)))
        row["sequential_seconds_for_same_error"] = needed(curve, row["rms_error"])
        row["sequential_error_in_same_time"] = sequential(effect, kind, row["block_seconds"], 100)
        rows.append(row)
    placebo = next(row for row in rows if row["effect"] == 1.0)
    return {
        "false_keeps": placebo["decisions"].get("accept", 0),
        "placebos": placebo["comparisons"],
        "sequential_error_by_seconds": curve,
        "effects": rows,
        "rule": RULE.model_dump(),
        "seconds": time.monotonic() - began,
    }
