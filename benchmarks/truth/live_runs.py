"""Whole live runs of the command whose list holds twenty placebos and nothing else: is any of them kept?

Each placebo sets an environment variable that nothing reads, and predicts a gain. Rule, fixed beforehand: none is in
the final plan of any run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import autoopt
from autoopt.records import JsonDict
from autoopt.setup import Setup
from autoopt.strategy import Case, Risk, Strategy
from benchmarks.documents import ROOT, environment
from benchmarks.truth import accuracy

CANDIDATES = 20
BUDGET = 200.0
"""Seconds of a run."""
RULE = f"none of {CANDIDATES} placebos is in the final plan of any run"
PREDICTED = 1.3


class Placebo(Strategy):
    """Changes nothing; base of the numbered ones."""

    risk = Risk.EXACT
    stages = frozenset({"forward"})

    def predict(self, case: Case, setting: JsonDict) -> autoopt.Estimate:
        return autoopt.Estimate(value=PREDICTED, low=1.0, high=PREDICTED, n=1)

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_flags(env={self.name.upper(): "1"})


NAMES = [f"placebo{number:02d}" for number in range(CANDIDATES)]
for _name in NAMES:
    globals()[_name.capitalize()] = type(_name.capitalize(), (Placebo,), {"name": _name, "__module__": __name__})


def build() -> autoopt.Workload:
    """A perceptron on noisy points, a few milliseconds a step."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8192, 64, generator=generator)
    y = (x[:, :8].sum(1) + torch.randn(8192, generator=generator) > 0).long()
    return autoopt.Workload(
        model=nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 2)),
        train_data=TensorDataset(x[:6144], y[:6144]),
        batch_size=64,
        loss=F.cross_entropy,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-4),
        valid_data=TensorDataset(x[6144:], y[6144:]),
        evaluate=accuracy,
        target=autoopt.Target("accuracy"),
        max_epochs=8,
    )


def one_run(budget: float = BUDGET) -> dict[str, Any]:
    """One run of the command: what it tried and kept, and its figures."""
    chosen = ",".join(f"{MODULE}:{name.capitalize()}" for name in NAMES)
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "autoopt", "optimize", f"{MODULE}:build", "--budget", f"{budget:g}s"),
            *("--strategies", chosen, "--only", ",".join(NAMES), "--out", f"{folder}/run", "--json", "--quiet"),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=budget + 150.0, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        found = json.loads(done.stdout)
    trials = [trial for trial in found["trials"] if trial["verdict"] != "not_tried"]
    return {
        "budget": budget,
        "seconds": found["seconds"],
        "plan": [change["strategy"] for change in found["best"]["plan"]["changes"]],
        "ever_kept": [trial["strategy"] for trial in trials if trial["verdict"] == "kept"],
        "tried": len({trial["strategy"] for trial in trials}),
        "verdicts": {trial["strategy"]: trial["verdict"] for trial in found["trials"]},
        "held": sum(t["throughput"]["low"] <= 1.0 <= t["throughput"]["high"] for t in trials if t["throughput"]),
        "measured": sum(bool(trial["throughput"]) for trial in trials),
        "noise": {name: found["noise"][name] for name in ("aa_ratio", "floor")},
        "environment": environment(),
    }


MODULE = "benchmarks.truth.live_runs"


def measure(known: dict[str, Any], runs: int) -> dict[str, Any]:
    """So many further runs; goes on where ``known`` ended."""
    rows = [*known.get("runs", []), *(one_run() for _ in range(runs))]
    return {"rule": RULE, "runs": rows, "holds": not any(one["plan"] for one in rows)}
