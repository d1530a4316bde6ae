"""Whole runs of the loop on a simulated machine: is any placebo kept, and do the figures hold the truth?

Every module of the loop is real but the trials, whose true speed and noise are given: screening, stacking, proofs,
ablation and verification, twenty candidates a run. ``placebos``: none of them brings anything. ``effects``: four do.
Processes of each plan scatter alike (``equal``), or those of every fourth candidate four times as much (``unequal``).
Rules and settings are fixed beforehand and stand in the result.
"""

from __future__ import annotations

import sys
import tempfile
import time
from math import log, prod
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from autoopt.records import Estimate, Plan, Verdict
from autoopt.testing.fakes import Behaviour, NoiseModel
from benchmarks.search.cases import SimulatedCase
from benchmarks.truth.placebo_runs import CALM, JUMPY
from simulated import World

CANDIDATES = 20
EFFECTS = (1.06, 1.1, 1.2, 1.5)
MOST_KEPT, LEAST_COVERED = 0.05, 0.93
BUDGET, STEP = 1800.0, 0.05

RULES = {
    "placebos": f"any placebo of {CANDIDATES} is in the final plan of at most {MOST_KEPT:.0%} of runs",
    "effects": f"at least {LEAST_COVERED:.0%} of intervals hold the truth (final plans, changes, measured again), "
    f"and at most {MOST_KEPT:.0%} of plans hold a placebo",
}


def one_run(what: str, spread: str, kind: str, seed: int) -> dict[str, Any]:
    """One run: what it kept, and its figures beside the truth."""
    gains = {f"placebo{number}": 1.0 for number in range(CANDIDATES)}
    if what == "effects":
        gains = {**{f"gain{number}": gain for number, gain in enumerate(EFFECTS)}, **gains}
    names = (
        np.random.default_rng([seed, 3]).permutation(list(gains))[:CANDIDATES] if what == "placebos" else list(gains)
    )
    gains = {str(name): gains[str(name)] for name in names[:CANDIDATES]}
    case = SimulatedCase("placebos", gains, step_seconds=STEP)
    jumpy = set(list(gains)[3::4]) if spread == "unequal" else set()

    def behave(plan: Plan, behaviour: Behaviour) -> Behaviour:
        sd = JUMPY if jumpy & set(plan.names()) else CALM
        return Behaviour(step_seconds=STEP / case.speed(plan.names()), process_sd=sd)

    with tempfile.TemporaryDirectory() as folder:
        world = World(
            Path(folder),
            *case.strategies(np.random.default_rng([seed, 4])),
            speed=lambda plan: 1.0,
            behave=behave,
            noise=NoiseModel(kind),  # type: ignore[arg-type]
            budget=BUDGET,
        )
        world.runner.machine.rng = np.random.default_rng([seed, 7])
        outcome = world.go()
    trials = outcome.state.trials
    kept = [trial for trial in trials if trial.verdict is Verdict.KEPT]
    single = [trial for trial in kept if not trial.companions]
    truth = prod(gains[name] for name in outcome.best.plan.names())
    return {
        "seed": seed,
        "tried": len({trial.strategy for trial in trials}),
        "plan": list(outcome.best.plan.names()),
        "attained": log(truth) / log(prod(gains.values())) if what == "effects" else None,
        "placebos_in_plan": sum(gains[name] == 1.0 for name in outcome.best.plan.names()),
        "placebos_ever_kept": sum(gains[trial.strategy] == 1.0 for trial in kept),
        "headline": _beside(outcome.speedup.throughput, truth),
        "selected": [_beside(trial.throughput, gains[trial.strategy]) for trial in single],
        "again": [_beside(trial.measured_again, gains[trial.strategy]) for trial in single if trial.measured_again],
        "changes": [_beside(row.without, gains[row.strategy]) for row in outcome.ablation if row.without],
        "all_trials": [_beside(t.throughput, gains[t.strategy]) for t in trials if t.throughput and not t.companions],
        "seconds": world.clock(),
    }


def _beside(estimate: Estimate | None, truth: float) -> dict[str, Any] | None:
    if estimate is None:
        return None
    return {"truth": truth, "error": log(estimate.value / truth), "covered": estimate.low <= truth <= estimate.high}


def measure(what: str, spread: str, kind: str, runs: int) -> dict[str, Any]:
    """So many runs, with the rule that judges them."""
    began = time.monotonic()
    rows = [one_run(what, spread, kind, seed) for seed in range(runs)]
    with_any = sum(row["placebos_in_plan"] > 0 for row in rows)
    figures = {
        "headline": [row["headline"] for row in rows],
        **{name: [one for row in rows for one in row[name]] for name in ("selected", "again", "changes", "all_trials")},
    }
    reported = {name: _summary([one for one in found if one is not None]) for name, found in figures.items()}
    covered = [reported[name]["covered"] for name in ("headline", "changes", "again") if reported[name]["count"]]
    return {
        "rule": RULES[what],
        "settings": {"budget": BUDGET, "step": STEP, "calm": CALM, "jumpy": JUMPY, "candidates": CANDIDATES},
        "what": what,
        "kind": kind,
        "spread": spread,
        "runs": runs,
        "runs_with_a_placebo_in_the_plan": with_any,
        "runs_with_a_placebo_ever_kept": sum(row["placebos_ever_kept"] > 0 for row in rows),
        "candidates_tried": fmean(row["tried"] for row in rows),
        "attained": fmean(row["attained"] for row in rows) if what == "effects" else None,
        "figures": reported,
        "holds": with_any <= MOST_KEPT * runs
        and (what == "placebos" or all(share >= LEAST_COVERED for share in covered)),
        "seconds": time.monotonic() - began,
    }


def _summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """How many figures, the share whose interval holds the truth, and their mean error (log)."""
    if not found:
        return {"count": 0, "covered": None, "mean_error": None}
    return {
        "count": len(found),
        "covered": fmean(one["covered"] for one in found),
        "mean_error": fmean(one["error"] for one in found),
    }
