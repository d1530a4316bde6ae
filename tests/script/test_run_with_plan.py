"""``autoopt run``: a script trains for real with a plan, and its files stay as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from autoopt.cli import main
from autoopt.records import Result, Sites
from autoopt.running import script_run

SCRIPT = """\
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("workers", loader.num_workers, "threads", torch.get_num_threads(), "words", *sys.argv[1:])
open("written.txt", "w").close()
sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
"""
PLAN = [{"strategy": "workers", "setting": {"num_workers": 1}}, {"strategy": "threads", "setting": {"threads": 1}}]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_text(json.dumps({"schema_version": 1, "changes": PLAN}))
    return tmp_path


def autoopt(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "autoopt", *words], cwd=project, capture_output=True, text=True, check=False, timeout=240
    )


def test_the_plan_is_put_on_and_no_file_changes(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    done = autoopt(project, "run", "--plan", "run/plan.json", "--", "train.py", "7")
    assert done.stdout.splitlines() == ["workers 1 threads 1 words 7"], done.stderr
    assert done.returncode == 7, "the exit code is the script's"
    after = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert after == {**before, project / "written.txt": b""}, "its own files are written where it writes them"


def test_a_function_that_describes_the_run_is_no_script(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    assert main(["run", "--plan", "run/plan.json", "my_module:build"]) == 2
    assert "autoopt train my_module:build" in capsys.readouterr().err


ACCELERATED = """\
import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
inputs = torch.randn(16, 64)
for _ in range(3):
    accelerator.backward((model(inputs) - inputs).square().mean())
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        predicted = model(inputs)
        print(predicted.dtype, (predicted - inputs).square().mean().item())
    model.train()
"""


@pytest.mark.slow
def test_a_trainers_precision_holds_while_it_evaluates(project: Path) -> None:
    """As the patch says it, in the arguments of the trainer; anywhere else an evaluation stays as it is."""
    pytest.importorskip("accelerate")
    changes = [{"strategy": "amp", "setting": {"dtype": "bfloat16"}}]
    (project / "run" / "plan.json").write_text(json.dumps({"schema_version": 1, "changes": changes}))
    (project / "plain.py").write_text(ACCELERATED)
    patched = ACCELERATED.replace("Accelerator(cpu=True)", 'Accelerator(cpu=True, mixed_precision="bf16")')
    (project / "both.py").write_text(f"{patched}\naccelerator.state._reset_state(True)\n{ACCELERATED}")
    done = autoopt(project, "run", "--plan", "run/plan.json", "--", "plain.py")
    alone = subprocess.run(
        [sys.executable, "both.py"], cwd=project, capture_output=True, text=True, check=True, timeout=120
    )
    lines = alone.stdout.splitlines()
    assert done.stdout.splitlines() == lines[:3] != lines[3:], done.stderr


GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "win.json").read_text())


def test_what_needs_a_build_is_refused_before_anything_runs(
    project: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The run beside the plan knows the script's sites."""
    monkeypatch.chdir(project)
    changes = [{"strategy": "accumulation", "setting": {"size": 8, "accumulation": 2}}]
    (project / "run" / "plan.json").write_text(json.dumps({"schema_version": 1, "changes": changes}))
    sites = Sites(command=(sys.executable, "train.py"), cwd=str(project))
    result = Result.model_validate({**GOLDEN, "sites": sites, "created": _iso(time.time() + 100)})
    (project / "run" / "result.json").write_text(result.model_dump_json())
    assert main(["run", "--plan", "run/plan.json", "--", "train.py"]) == 2
    out, err = capfd.readouterr()
    assert "cannot be put on this script" in err
    assert out == ""


def test_sites_of_the_run_beside_the_plan_hold_until_the_script_changes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    command = (sys.executable, "train.py", "--epochs", "90")
    site = {"kind": "optimizer", "file": "train.py", "line": 10, "end_line": 10}
    sites = Sites.model_validate({"command": (sys.executable, "train.py"), "cwd": str(project), "sites": [site]})
    result = Result.model_validate({**GOLDEN, "sites": sites})
    seen = project.joinpath("train.py").stat().st_mtime
    for when, known in ((seen - 100, sites), (seen + 100, None)):
        os.utime(project / "train.py", (when, when))
        at = result.model_copy(update={"created": _iso(seen)})
        (project / "run" / "result.json").write_text(at.model_dump_json())
        assert script_run.known_sites(Path("run/plan.json"), command) == known
    other = (sys.executable, "other.py")
    os.utime(project / "train.py", (seen - 100, seen - 100))
    assert script_run.known_sites(Path("run/plan.json"), other) is None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
