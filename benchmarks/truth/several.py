"""One plan against several others at a time, and the same pair by pair: errors, decisions, seconds (simulated machine).

Rules and settings are fixed before the run and stand in the result. Each seed is a machine of its own on which both
ways decide the same plans; the seconds are those of its clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from autoopt.records import Change, Plan
from autoopt.search.compare.arena import Source
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.contest import Contest, compare
from autoopt.search.compare.noise import control
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel
from benchmarks.truth.placebo_runs import CALM, JUMPY

EFFECTS = {"parts": (1.1, 1.2, 1.3, 1.4), "placebos": (1.0, 1.0, 1.0, 1.0)}
"""True speedups of the others over the shared plan."""
SECONDS = 60.0
"""For each of the others."""
LEAST_COVERAGE = 0.95
MOST_KEPT = 0.05


def measured(
    effects: Sequence[float], kind: str, spread: str, seed: int, *, at_once: bool
) -> tuple[list[Comparison], float]:
    """The comparisons on one machine, and the seconds that they took together."""
    others = [Plan(changes=(Change(strategy="part", setting={"number": number}),)) for number in range(len(effects))]

    def behave(plan: Plan) -> Behaviour:
        number = int(plan.changes[0].setting["number"]) if plan.changes else -1
        jumpy = spread == "unequal" and number % 4 == 3
        effect = effects[number] if plan.changes else 1.0
        return Behaviour(step_seconds=0.02 / effect, process_sd=JUMPY if jumpy else CALM)

    fake = FakeMachine(behave=behave, noise=NoiseModel(kind), seed=seed)  # type: ignore[arg-type]
    rng = np.random.default_rng([seed, 2])
    noise, _ = control(fake.start, Plan(), Rule(), clock=fake.clock, rng=rng)
    began = fake.clock()
    if at_once:
        rule = Rule(max_seconds=SECONDS * len(others))
        source = Source(fake.start)
        contest = Contest(source, Plan(), others, "incumbent", rule, clock=fake.clock, noise=noise, rng=rng)
        found = [comparison for comparison in contest.run() if comparison is not None]
    else:
        rule = Rule(max_seconds=SECONDS)
        found = [compare(fake.start, Plan(), one, rule, clock=fake.clock, noise=noise, rng=rng) for one in others]
    return found, fake.clock() - began


def summary(what: str, kind: str, spread: str, runs: int, *, at_once: bool) -> dict[str, Any]:
    """So many machines."""
    effects = EFFECTS[what]
    found = [measured(effects, kind, spread, seed, at_once=at_once) for seed in range(runs)]
    rows = [(seen, effect) for comparisons, _ in found for seen, effect in zip(comparisons, effects, strict=True)]
    accepted = [seen.decision is Decision.ACCEPT for seen, _ in rows]
    covered = [bool(seen.estimate and seen.estimate.low <= true <= seen.estimate.high) for seen, true in rows]
    return {
        "seconds": float(np.mean([seconds for _, seconds in found])),
        "pairs": float(np.mean([len(seen.pairs) for seen, _ in rows])),
        "accepted": float(np.mean(accepted)),
        "coverage": float(np.mean(covered)),
    }


def judged(what: str, at_once: dict[str, Any]) -> bool:
    """Whether the rule that stands in the result holds."""
    return at_once["coverage"] >= LEAST_COVERAGE and (what != "placebos" or at_once["accepted"] <= MOST_KEPT)


def measure(what: str, spread: str, kind: str, runs: int) -> dict[str, Any]:
    """Both ways on so many machines, with the rule that judges them."""
    ways = {way: summary(what, kind, spread, runs, at_once=way == "at_once") for way in ("pairs", "at_once")}
    return {
        "rule": f"at once, intervals hold the truth in at least {LEAST_COVERAGE:.0%}, and at most "
        f"{MOST_KEPT:.0%} of placebos are accepted",
        "settings": {"effects": EFFECTS[what], "seconds": SECONDS, "calm": CALM, "jumpy": JUMPY},
        "runs": runs,
        **ways,
        "holds": judged(what, ways["at_once"]),
    }
