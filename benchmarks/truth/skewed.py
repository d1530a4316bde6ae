"""Placebos whose processes are unequal: how often a comparison accepts a plan that brings nothing on average.

``python -m benchmarks.truth.skewed --out FILE``. A placebo's processes have a rare slow mode (one in five is slower by
a fifth), or scatter twice as much as the machine's; its mean speed is the baseline's. Comparisons end when the data say
so. Counted are false accepts and intervals that hold the truth.
"""

from __future__ import annotations

import json
from math import exp
from typing import Any

import numpy as np

from autoopt.records import Plan
from autoopt.search.compare.comparison import Decision, Rule
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel
from benchmarks.documents import RESULTS, environment, parser_of, save
from benchmarks.truth.loaders import after_control

SLOW, RARE = 1.2, 0.2
"""Times that a slow process takes, and the share of such."""
KINDS = ("alike", "slow mode", "restless")
STEP = 0.02


def behave(kind: str, gain: float, plan: Plan) -> Behaviour:
    """A plan whose mean speed over processes is ``gain`` times the baseline's."""
    if not plan.changes:
        return Behaviour(step_seconds=STEP)
    if kind == "slow mode":
        mean = 1.0 - RARE + RARE / SLOW
        return Behaviour(step_seconds=STEP * mean / gain, slow_mode=(RARE, SLOW))
    if kind == "restless":
        sd = 2 * NoiseModel().process_sd
        return Behaviour(step_seconds=STEP / gain * exp(sd**2 / 2), process_sd=sd)
    return Behaviour(step_seconds=STEP / gain)


def run(kind: str, noise_kind: str, gain: float, seed: int, seconds: float) -> dict[str, Any]:
    """One comparison after an A/A control."""
    machine = FakeMachine(
        behave=lambda plan: behave(kind, gain, plan),
        noise=NoiseModel(noise_kind),  # type: ignore[arg-type]
        seed=seed,
    )
    rule = Rule(max_seconds=seconds, alpha_accept=0.025, max_pairs=40)
    found = after_control(machine, rule, np.random.default_rng([seed, 3]))
    estimate = found.estimate
    return {
        "accepted": found.decision is Decision.ACCEPT,
        "covered": estimate is not None and estimate.low <= gain <= estimate.high,
        "pairs": len(found.pairs),
        "seconds": found.seconds,
    }


def main() -> None:
    parser = parser_of("benchmarks.truth.skewed", __doc__, RESULTS / "skewed.json")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=300.0)
    options = parser.parse_args()
    rows = []
    for gain in (1.0, 1.1, 1.3):
        for kind in KINDS:
            for noise in ("normal", "heavy", "drifting"):
                runs = [run(kind, noise, gain, seed, options.seconds) for seed in range(options.seeds)]
                row = {
                    "gain": gain,
                    "processes": kind,
                    "noise": noise,
                    "runs": len(runs),
                    "accepted": float(np.mean([one["accepted"] for one in runs])),
                    "covered": float(np.mean([one["covered"] for one in runs])),
                    "pairs": float(np.median([one["pairs"] for one in runs])),
                    "seconds": float(np.median([one["seconds"] for one in runs])),
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
    save(options.out, {"rows": rows, "environment": environment()})


if __name__ == "__main__":
    main()
