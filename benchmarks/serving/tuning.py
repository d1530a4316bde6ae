"""A learning rate that ``--tune`` searched, beside plain Optuna for as long, trained again from fresh seeds."""

from __future__ import annotations

import json
import time
from typing import Any

from benchmarks.documents import save
from benchmarks.serving.commands import Piece

TUNED, SPACE = "benchmarks/serving/images.py:untuned", "lr=1e-4..1e-1"
FRESH = (5001, 5002, 5003)
LONGEST = 60.0
"""Seconds of one fresh training, about, on a slow machine."""


def steps_to_target(lr: float | None, seed: int, most: int = 10**6, report: Any = None) -> tuple[int | None, float]:
    """Steps and seconds of a training until two evaluations in a row have the target; None where it runs out."""
    import autoopt as facade
    from autoopt.benchmark.seeding import seed_everything
    from benchmarks.serving.images import untuned

    seed_everything(seed)
    workload = untuned()
    plan = [] if lr is None else [facade.Change(strategy="hyperparameters", setting={"lr": lr})]
    training = facade.apply(workload, facade.Plan(changes=tuple(plan)), device="cpu", seed=seed)
    assert workload.target is not None
    began, beyond, first = time.monotonic(), 0, None
    try:
        for batches in training:
            training.step(batches)
            if training.steps % training.evaluate_every:
                continue
            metric = training.evaluate()["accuracy"]
            beyond = beyond + 1 if workload.target.reached(metric) else 0
            first = training.steps if beyond == 1 else first
            if report is not None:
                report(metric, training.steps)
            if beyond == 2 or training.steps >= most:
                break
    finally:
        training.close()
    return (first if beyond == 2 else None), time.monotonic() - began


def plain_optuna(seconds: float, most: int, seed: int) -> dict[str, Any]:
    """TPE with Optuna's median pruner over the same range for the same time, in one process."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0), pruner=optuna.pruners.MedianPruner())

    def objective(trial: Any) -> float:
        def report(metric: float, step: int) -> None:
            trial.report(-metric, step)
            if trial.should_prune():
                raise optuna.TrialPruned

        steps, _ = steps_to_target(trial.suggest_float("lr", 1e-4, 1e-1, log=True), seed, most, report)
        return float(steps if steps is not None else 2 * most)

    study.optimize(objective, timeout=seconds)
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    best = study.best_trial if done else None
    return {
        "lr": best.params["lr"] if best else None,
        "trials": len(study.trials),
        "best_steps": best.value if best else None,
    }


def tuned(piece: Piece, budget: float) -> dict[str, Any]:
    """The command, plain Optuna for as long as its search took, and all three from fresh seeds, in turns."""
    result = piece.optimized(TUNED, budget, "--tune", SPACE, "--only", "hyperparameters")
    found = result["tuning"]
    if not found["trials"]:
        raise SystemExit(f"nothing was searched ({found['note'] or 'no time'}): a larger budget, with --anew")
    best = next((trial for trial in found["trials"] if trial["number"] == found["best"]), None)

    def measure() -> dict[str, Any]:
        piece.need(found["seconds"] + LONGEST, "plain Optuna")
        return plain_optuna(found["seconds"], found["rungs"][-1], found["seed"])

    rival = piece.once("optuna", measure)
    rates = {"own": None, "autoopt": best["values"]["lr"] if best else None, "optuna": rival["lr"]}
    trial = next((t for t in result["trials"] if t["strategy"] == "hyperparameters"), None)
    return {
        "workload": TUNED,
        "space": SPACE,
        "budget_seconds": result["budget_seconds"],
        "search_seconds": found["seconds"],
        "trials": [{k: t[k] for k in ("values", "state", "steps", "steps_to_target")} for t in found["trials"]],
        "rates": {**rates, "own": found["own"]["lr"]},
        "optuna": rival,
        "fresh": fresh(piece, rates),
        "verdict": trial and {k: trial[k] for k in ("verdict", "reason", "time_to_target", "setting")},
        "speedup": result["speedup"],
    }


def fresh(piece: Piece, rates: dict[str, float | None]) -> dict[str, list[dict[str, Any]]]:
    """Steps and seconds to the target of each rate from seeds that no search used; each is kept as it comes.

    A search that found no rate has no trainings.
    """
    path = piece.folder / "fresh.json"
    runs: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path.exists() else {n: [] for n in rates}
    for seed in FRESH:
        for name, lr in rates.items():
            if (lr is None and name != "own") or any(run["seed"] == seed for run in runs[name]):
                continue
            piece.need(LONGEST, f"training {name} from seed {seed}")
            steps, seconds = steps_to_target(lr, seed)
            runs[name].append({"seed": seed, "steps": steps, "seconds": seconds})
            save(path, runs)
    return runs
