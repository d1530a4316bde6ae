"""A text classifier and an image model within a latency; a learning rate that was searched, beside plain Optuna.

    python -m benchmarks.serving --latency text --p95 2ms     # benchmarks/results/serving.json
    python -m benchmarks.serving --latency images --p95 4ms
    python -m benchmarks.serving --tune 3m
    python -m benchmarks.serving --page                       # docs/latency.md and docs/tune.md from it

Run each on a machine that does nothing else. Needs the extras serving, tune and examples.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.documents import environment, load, save

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "serving.json"
CASES = {"text": "examples/text.py:build", "images": "benchmarks/serving/images.py:build"}
TUNED, SPACE = "benchmarks/serving/images.py:untuned", "lr=1e-4..1e-1"
FRESH = (5001, 5002, 5003)
MARK = "<!-- figures -->"


def autoopt(*words: str) -> dict[str, Any]:
    """A command with ``--json``, from the project's folder; 5 is an answer, too."""
    command = [sys.executable, "-m", "autoopt", *words, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 5):
        raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def latency(case: str, p95: str, budget: str) -> dict[str, Any]:
    """Trains a case, then serves it: the variants' figures, what was taken, and the acceptance test's output."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        plan = Path(folder) / "plan.json"
        plan.write_text('{"schema_version": 1, "changes": []}')
        trained = autoopt("train", CASES[case], "--plan", str(plan), "--out", f"{folder}/train", "--quiet")
        seconds = time.monotonic() - began
        weights = f"{folder}/train/checkpoint.pt"
        found = autoopt(
            "latency", CASES[case], "--checkpoint", weights, "--p95", p95, "--budget", budget, "--out", f"{folder}/run"
        )
    kept = (
        "limit_seconds",
        "max_drop",
        "metric",
        "validation_samples",
        "chosen",
        "holds",
        "reason",
        "control",
        "seconds",
    )
    fields = (
        "name", "status", "reason", "p95", "ratio", "screened_p95", "drop", "cost_seconds", "model_bytes", "loads",
        "cold_start", "front", "knee", "fits", "keeps",
    )  # fmt: skip
    return {
        "environment": environment(),
        "workload": CASES[case],
        "training_seconds": seconds,
        "trained": {key: trained.get(key) for key in ("metrics", "steps", "reached")},
        **{key: found[key] for key in kept},
        "acceptance": found["acceptance"] and {k: found["acceptance"][k] for k in ("exit_code", "output")},
        "variants": [{key: variant[key] for key in fields} for variant in found["variants"]],
    }


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
    return {"lr": study.best_params["lr"], "trials": len(study.trials), "best_steps": study.best_value}


def tune(budget: str) -> dict[str, Any]:
    """The command, plain Optuna for as long as its search took, and all three from fresh seeds, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        result = autoopt(
            "optimize", TUNED, "--tune", SPACE, "--only", "hyperparameters", "--budget", budget,
            "--out", folder + "/run", "--quiet",
        )  # fmt: skip
    found = result["tuning"]
    best = next((trial for trial in found["trials"] if trial["number"] == found["best"]), None)
    rival = plain_optuna(found["seconds"], found["rungs"][-1], found["seed"])
    rates = {"own": None, "autoopt": best["values"]["lr"] if best else None, "optuna": rival["lr"]}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in rates}
    for seed in FRESH:
        for name, lr in rates.items():
            steps, seconds = steps_to_target(lr, seed)
            runs[name].append({"seed": seed, "steps": steps, "seconds": seconds})
    trial = next((t for t in result["trials"] if t["strategy"] == "hyperparameters"), None)
    return {
        "environment": environment(),
        "workload": TUNED,
        "space": SPACE,
        "budget_seconds": result["budget_seconds"],
        "search_seconds": found["seconds"],
        "trials": [{k: t[k] for k in ("values", "state", "steps", "steps_to_target")} for t in found["trials"]],
        "rates": {**rates, "own": found["own"]["lr"]},
        "optuna": rival,
        "fresh": runs,
        "verdict": trial and {k: trial[k] for k in ("verdict", "reason", "time_to_target", "setting")},
        "speedup": result["speedup"],
    }


def figures(document: dict[str, Any]) -> dict[str, str]:
    """The tables of the pages, by page."""
    pages: dict[str, list[str]] = {"latency.md": [], "tune.md": []}
    for case in CASES:
        if case in document:
            pages["latency.md"] += _latency_table(document[case])
    if "tune" in document:
        pages["tune.md"] += _tune_table(document["tune"])
    return {page: "\n".join(lines) + "\n" for page, lines in pages.items() if lines}


def _latency_table(found: dict[str, Any]) -> list[str]:
    machine = found["environment"]
    lines = [
        f"`{found['workload']}`, limit {1e3 * found['limit_seconds']:g} ms, {found['validation_samples']} "
        f"validation samples, {machine['cores']} cores ({machine['cpu']}), in {found['seconds']:.0f} s: "
        f"{found['reason']}",
        "",
        "| form | P95, ms | speedup of the P95 | drop of accuracy, % | model, KiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for variant in found["variants"]:
        if variant["status"] not in ("measured", "screened"):
            continue
        p95 = _interval(variant["p95"], 1e3) if variant["p95"] else f"{1e3 * variant['screened_p95']:.3g} (a look)"
        lines.append(
            f"| {variant['name']} | {p95} | {_interval(variant['ratio'], 1.0)} | {_interval(variant['drop'], 100.0)} | "
            f"{variant['model_bytes'] / 1024:.0f} |"
        )
    tested = found["acceptance"]
    if tested:
        lines += ["", "Its acceptance test, in a process without autoopt:", "", "```", tested["output"], "```"]
    return [*lines, ""]


def _interval(estimate: dict[str, Any] | None, scale: float) -> str:
    if estimate is None:
        return "not measured"
    value, low, high = (scale * estimate[key] for key in ("value", "low", "high"))
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def _tune_table(found: dict[str, Any]) -> list[str]:
    machine = found["environment"]
    names = {"own": "the workload's own", "autoopt": "`--tune`", "optuna": "plain Optuna (TPE, median pruner)"}
    counts = {"own": "-", "autoopt": str(len(found["trials"])), "optuna": str(found["optuna"]["trials"])}
    lines = [
        f"`{found['workload']}`, `--tune {found['space']}`, {found['search_seconds']:.0f} s of search for each of "
        f"the two, {machine['cores']} cores ({machine['cpu']}); then {len(FRESH)} fresh seeds, in turns:",
        "",
        "| learning rate of | value | trials | steps to the target | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, runs in found["fresh"].items():
        rate = found["rates"][name]
        steps = ", ".join("not reached" if run["steps"] is None else str(run["steps"]) for run in runs)
        seconds = ", ".join(f"{run['seconds']:.1f}" for run in runs)
        shown = "none found" if rate is None else f"{rate:.3g}"
        lines.append(f"| {names[name]} | {shown} | {counts[name]} | {steps} | {seconds} |")
    verdict = found["verdict"]
    return [
        *lines,
        "",
        f"The run's own verdict on it: {verdict['verdict']}; {verdict['reason']}." if verdict else "",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--latency", choices=tuple(CASES))
    parser.add_argument("--p95", default="5ms")
    parser.add_argument("--budget", default="2m", help="of a latency command")
    parser.add_argument("--tune", metavar="BUDGET")
    parser.add_argument("--page", action="store_true")
    given = parser.parse_args()
    document = load(RESULTS)
    if given.latency:
        document[given.latency] = latency(given.latency, given.p95, given.budget)
    if given.tune:
        document["tune"] = tune(given.tune)
    if given.latency or given.tune:
        save(RESULTS, document)
    if given.page:
        for page, text in figures(document).items():
            path = ROOT / "docs" / page
            before, _, rest = path.read_text(encoding="utf-8").partition(MARK)
            after = rest.partition(MARK)[2]
            path.write_text(f"{before}{MARK}\n\n{text}\n{MARK}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
