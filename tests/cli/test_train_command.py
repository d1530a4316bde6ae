"""The output of ``autoopt train``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from autoopt.cli import main
from autoopt.options import Options
from autoopt.records import Curve, Plan
from autoopt.train import Trained
from modules import run_python

DONE = Trained(
    workload="m:b",
    plan=Plan(),
    seed=0,
    steps=1200,
    samples=76800,
    seconds=34.06,
    samples_per_second=2255.1,
    loss=0.21,
    metrics={"accuracy": 0.934, "loss": 0.2},
    metric="accuracy",
    target=0.93,
    reached=True,
    stopped="target",
    curve=Curve(seed=0),
    cost=0.033,
    checkpoint="runs/a/checkpoint.pt",
)


Asked = list[tuple[str, Plan, Options]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    calls: Asked = []

    def train_run(spec: str, plan: Plan, options: Options, *, listeners: Sequence[object] = ()) -> Trained:
        calls.append((spec, plan, options))
        print("printed by the user")
        return DONE

    monkeypatch.setattr("autoopt.train.train_run", train_run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text('{"schema_version": 1, "changes": []}')
    return calls


def test_it_says_how_the_training_ended(asked: Asked, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "m:b", "--plan", "plan.json", "--price", "3.50", "--seed", "4"]) == 0
    assert capfd.readouterr().out.splitlines() == [
        "target reached after 1200 steps in 34.1 s (target)",
        "  accuracy: 0.934 (target 0.93)",
        "  loss: 0.2",
        "  samples per second: 2255",
        "  cost: 0.033",
        "  checkpoint: runs/a/checkpoint.pt",
    ]
    assert asked == [("m:b", Plan(), Options(price=3.5, seed=4))]
    assert main(["train", "m:b", "--plan", "plan.json", "--json"]) == 0
    assert Trained.model_validate(json.loads(capfd.readouterr().out)) == DONE


def test_an_interrupted_training_says_so(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    stopped = DONE.model_copy(update={"stopped": "interrupted", "reached": False})
    monkeypatch.setattr("autoopt.train.train_run", lambda *args, **keywords: stopped)
    assert main(["train", "m:b", "--plan", "plan.json"]) == 130
    assert "(interrupted)" in capfd.readouterr().out


ENVIRONMENT = {"schema_version": 1, "changes": [{"strategy": "early", "setting": {}}]}
EARLY = """
import os, sys
import torch; print('torch', os.environ.get('OMP_DYNAMIC_OF_A_TEST'))
AT_IMPORT = dict(os.environ)
from autoopt import Risk, Strategy

class Early(Strategy):
    name = "early"
    stages = frozenset({"forward"})
    risk = Risk.EXACT
    def apply(self, setup, setting):
        return setup.with_flags(env={"OMP_DYNAMIC_OF_A_TEST": "yes"})
"""
BUILD = """
import os, sys, torch
from torch import nn
from torch.utils.data import TensorDataset
import autoopt

def build():
    print("environment", os.environ.get("OMP_DYNAMIC_OF_A_TEST"))
    data = TensorDataset(torch.randn(16, 2), torch.randn(16, 1))
    return autoopt.Workload(model=nn.Linear(2, 1), train_data=data, batch_size=8, loss=nn.MSELoss(),
                            optimizer=lambda p: torch.optim.SGD(p, lr=0.1), max_steps=2)
"""


def test_environment_of_the_plan_is_there_before_torch(tmp_path: Path) -> None:
    """A strategy that imports torch: the process begins anew, and finds the variable set then."""
    (tmp_path / "early.py").write_text(EARLY)
    (tmp_path / "work.py").write_text(BUILD)
    (tmp_path / "plan.json").write_text(json.dumps(ENVIRONMENT))
    words = ["-W", "error::UserWarning:autoopt", "-m", "autoopt", "train", "work:build", "--plan", "plan.json"]
    words += ["--strategies", "early:Early", "--quiet", "--json", "--out", "out"]
    done = run_python(*words, cwd=tmp_path)
    assert Trained.model_validate_json(done.stdout).steps == 2
    assert "environment yes" in done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("torch")]
    assert told == ["torch None", "torch yes"]
