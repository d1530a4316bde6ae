"""Comparisons of trainings whose loaders deliver in bunches, where the truth can be computed.

``python -m benchmarks.truth.loaders --out FILE``: simulated loaders of 2 to 16 workers, with and without jitter, on a
shared machine. A training is bound by its input or by computing, and the candidate shortens one of the two. Where it
shortens what the other hides, the true ratio is 1.00. Counted are accepted comparisons, and those
that two minutes leave undecided.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoopt.records import Change, Plan
from autoopt.search.compare.comparison import Comparison, Decision, Rule
from autoopt.search.compare.contest import compare
from autoopt.search.compare.noise import control
from autoopt.testing.fakes import Behaviour, FakeMachine, LoaderModel, NoiseModel
from benchmarks.documents import RESULTS, environment, parser_of, save

COMPUTING, SECONDS = 0.02, 120.0
"""Of a step's computing, and of a comparison."""
SLOWER = 2.0
"""Times that the bound stage takes what the other one takes."""


@dataclass(frozen=True)
class Case:
    """A pair of trainings.

    Args:
        workers: of the loader.
        jitter: standard deviation of the log of a batch's seconds.
        bound: what a step of the baseline waits for, ``input`` or ``computing``.
        gain: how many times shorter the candidate's bound stage is; 1.0: its other stage, which is hidden, is halved.
        noise: of the machine.
    """

    workers: int
    jitter: float
    bound: str
    gain: float
    noise: str = "heavy"

    def behave(self, plan: Plan) -> Behaviour:
        gain = self.gain if plan.changes else 1.0
        hidden = 2.0 if plan.changes and self.gain == 1.0 else 1.0
        computing, making = COMPUTING, COMPUTING * self.workers
        if self.bound == "input":
            making *= SLOWER / gain
            computing /= hidden if self.gain == 1.0 else SLOWER
        else:
            computing /= gain
            making /= SLOWER * hidden * gain
        loader = LoaderModel(self.workers, making, self.jitter)
        return Behaviour(step_seconds=computing, loader=loader, startup_seconds=2.0)


def cases() -> Iterator[Case]:
    """All of them: workers, jitter, what binds, and the true gain."""
    for workers in (2, 4, 8, 16):
        for jitter in (0.0, 0.02, 0.05):
            for bound in ("input", "computing"):
                for gain in (1.0, 1.25, 2.0):
                    yield Case(workers, jitter, bound, gain)


def after_control(fake: FakeMachine, rule: Rule, rng: np.random.Generator) -> Comparison:
    """One comparison after an A/A control of two pairs, as a command makes it."""
    noise, _ = control(fake.start, Plan(), rule, clock=fake.clock, pairs=2, rng=rng)
    candidate = Plan(changes=(Change(strategy="candidate"),))
    return compare(fake.start, Plan(), candidate, rule, clock=fake.clock, noise=noise, rng=rng)


def run(case: Case, seed: int) -> dict[str, Any]:
    """One comparison after an A/A control."""
    machine = FakeMachine(behave=case.behave, noise=NoiseModel(case.noise), seed=seed)  # type: ignore[arg-type]
    rule = Rule(max_seconds=SECONDS, alpha_accept=0.025)
    found = after_control(machine, rule, np.random.default_rng([seed, 2]))
    estimate = found.estimate
    return {
        "decision": found.decision.value,
        "value": estimate.value if estimate else None,
        "low": estimate.low if estimate else None,
        "high": estimate.high if estimate else None,
        "seconds": found.seconds,
        "pairs": len(found.pairs),
    }


def summary(case: Case, seeds: int) -> dict[str, Any]:
    """Decisions over many seeds, and how often the interval holds the truth."""
    runs = [run(case, seed) for seed in range(seeds)]
    reported = [one for one in runs if one["value"] is not None]
    return {
        **vars(case),
        "runs": seeds,
        "accepted": sum(one["decision"] == Decision.ACCEPT for one in runs),
        "undecided": sum(one["decision"] == Decision.INCONCLUSIVE for one in runs),
        "median": float(np.median([one["value"] for one in reported])) if reported else None,
        "covered": sum(one["low"] <= case.gain <= one["high"] for one in reported),
        "seconds": float(np.median([one["seconds"] for one in runs])),
    }


def main() -> None:
    parser = parser_of("benchmarks.truth.loaders", __doc__, RESULTS / "loaders.json")
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    rows = []
    for case in cases():
        row = summary(case, options.seeds)
        rows.append(row)
        print(json.dumps(row), flush=True)
    save(options.out, {"rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
