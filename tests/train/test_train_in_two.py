"""``autoopt train`` with a plan for two processes: it becomes torchrun, and trains what one process trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoopt.cli.train import start_processes
from autoopt.records import Change, Plan, PlanDocument

POINTS = Path(__file__).parents[1] / "distributed" / "points.py"
TWO = Plan(changes=(Change(strategy="ddp", setting={"processes": 2}),))


def test_the_command_becomes_torchrun_once(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []
    monkeypatch.setattr(sys, "argv", ["autoopt", "train", "m:build", "--plan", "plan.json"])
    start_processes(2, lambda *words: became.append(words))
    ((program, words),) = became
    assert program == sys.executable
    assert words[1:5] == ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    assert words[5:] == ["-m", "autoopt", "train", "m:build", "--plan", "plan.json"]
    monkeypatch.setenv("RANK", "0")
    start_processes(2, lambda *words: became.append(words))
    start_processes(1, lambda *words: became.append(words))
    assert len(became) == 1


@pytest.mark.slow
def test_two_processes_train_to_the_end_and_go_on_from_their_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(PlanDocument(changes=TWO.changes).model_dump_json())
    words = [sys.executable, "-m", "autoopt", "train", f"{POINTS}:build", "--plan", str(tmp_path / "plan.json")]
    words += ["--out", str(tmp_path / "out"), "--json", "--quiet", "--device", "cpu"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for _ in range(2):  # the second goes on from the end
        done = subprocess.run(words, capture_output=True, text=True, env=variables, check=False)
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert (document["steps"], document["samples"]) == (48, 750)
        assert document["metrics"]["accuracy"] > 0.5
    assert document["resumed_from"] == 48
