"""Regressions of 5 to 30 % planted into a history of 32 commits or 12 packages, found by ``autoopt bisect``.

    python -m benchmarks.bisection --simulated 20    # of each kind of history, in simulated time

The comparisons are those of the command: pairs of processes in the arena, until it is plain whether a step is slower
than half of the loss. Half of the regressions are commits, half packages; none is drawn twice.
"""

from __future__ import annotations

import time
from math import log
from typing import Any

import numpy as np

from autoopt.comparing.bisection import Blame, Observation, bisect
from autoopt.records import Change, Plan
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control, learned
from autoopt.search.compare.sequential_test import between_process_of
from autoopt.search.compare.statistics import TwoLevel
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel
from benchmarks.documents import RESULTS, parser_of, record

HISTORIES = {"commits": 32, "packages": 12}
KINDS = ("normal", "heavy", "drifting")
BUDGET = 3600.0
"""Simulated seconds of a bisection."""


def planted(kind: str, places: int, seed: int) -> dict[str, Any]:
    """One regression and what was found."""
    rng = np.random.default_rng([seed, places])
    true, loss = int(rng.integers(1, places + 1)), float(rng.uniform(0.05, 0.30))
    spread = float(rng.choice((0.01, 0.02, 0.04)))

    def behave(plan: Plan) -> Behaviour:
        slow = any(change.setting["place"] >= true for change in plan.changes)
        return Behaviour(step_seconds=0.02 / (1.0 - loss) if slow else 0.02, process_sd=spread)

    def machine() -> FakeMachine:
        return FakeMachine(behave, NoiseModel(kind), seed=int(rng.integers(2**31)))  # type: ignore[arg-type]

    rule = Rule(max_seconds=BUDGET / 8, max_pairs=24)
    first = machine()
    noise = control(first.start, Plan(), rule, clock=first.clock, pairs=2, rng=rng)[0]
    spent = first.clock.now

    def measure(place: int, margin: float) -> Observation | None:
        nonlocal noise, spent
        here = machine()
        asked = rule.model_copy(update={"min_gain": -margin, "alpha_reject": 0.05})
        other = Plan(changes=(Change(strategy="threads", setting={"place": place}),))
        found = compare(here.start, Plan(), other, asked, clock=here.clock, noise=noise, rng=rng)
        spent += here.clock.now
        if not found.pairs:
            return None
        noise = learned(noise, found)
        values, errors = ([getattr(pair, name) for pair in found.pairs] for name in ("log_ratio", "standard_error"))
        level = TwoLevel(values, errors, between_process_of(noise))
        return Observation(place, level.value, level.error)

    found: Blame = bisect(places, measure, lambda: spent < BUDGET)
    return {
        "place": true, "loss": round(loss, 4), "process_sd": spread, "found": found.place, "sure": found.sure,
        "probability": round(max(found.probabilities, default=0.0), 4), "comparisons": len(found.asked),
        "speed": round(float(np.exp(found.loss)), 4), "seconds": round(spent),
        "error": round(abs(found.loss - log(1.0 - loss)), 4),
    }  # fmt: skip


def main() -> None:
    parser = parser_of("benchmarks.bisection", __doc__, RESULTS / "bisection.json")
    parser.add_argument("--simulated", type=int, default=20, metavar="REGRESSIONS", help="of each history and noise")
    options = parser.parse_args()
    for history, places in HISTORIES.items():
        for kind in KINDS:
            began = time.monotonic()
            rows = [planted(kind, places, seed) for seed in range(options.simulated)]
            record(options.out, {"rows": rows, "seconds": time.monotonic() - began}, history, kind)
            right = sum(row["sure"] and row["found"] == row["place"] for row in rows)
            print(f"{history}, {kind} noise: right blame in {right} of {len(rows)}", flush=True)


if __name__ == "__main__":
    main()
