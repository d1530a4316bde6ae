"""``autoopt run``: a script trains for real with a plan, and its files stay as they are."""

from __future__ import annotations

import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import sample
from autoopt.cli import main
from autoopt.records import Change, JsonDict, PlanDocument, Sites
from autoopt.running import script_run
from modules import autoopt, run_python

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
WORKERS, THREADS = ("workers", {"num_workers": 1}), ("threads", {"threads": 1})


def planned(project: Path, *changes: tuple[str, JsonDict]) -> Path:
    """The project, with a run of a plan of these changes in it."""
    (project / "run").mkdir(exist_ok=True)
    document = PlanDocument(changes=tuple(Change(strategy=name, setting=setting) for name, setting in changes))
    (project / "run" / "plan.json").write_text(document.model_dump_json())
    return project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    return planned(tmp_path, WORKERS, THREADS)


def test_the_plan_is_put_on_and_no_file_changes(project: Path) -> None:
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    done = autoopt("run", "--plan", "run/plan.json", "--", "train.py", "7", codes=(7,))  # which is the script's
    assert done.stdout.splitlines() == ["workers 1 threads 1 words 7"], done.stderr
    after = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert after == {**before, project / "written.txt": b""}, "its own files are written where it writes them"


def test_a_function_that_describes_the_run_is_no_script(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
    planned(project, ("amp", {"dtype": "bfloat16"}))
    (project / "plain.py").write_text(ACCELERATED)
    patched = ACCELERATED.replace("Accelerator(cpu=True)", 'Accelerator(cpu=True, mixed_precision="bf16")')
    (project / "both.py").write_text(f"{patched}\naccelerator.state._reset_state(True)\n{ACCELERATED}")
    done = autoopt("run", "--plan", "run/plan.json", "--", "plain.py")
    lines = run_python("both.py").stdout.splitlines()
    assert done.stdout.splitlines() == lines[:3] != lines[3:], done.stderr


def ran(project: Path, sites: Sites, when: float) -> None:
    """The result of the run, which saw these sites at that time."""
    created = datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds")
    result = sample.win().model_copy(update={"sites": sites, "created": created})
    (project / "run" / "result.json").write_text(result.model_dump_json())


def test_what_needs_a_build_is_refused_before_anything_runs(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The run beside the plan knows the script's sites."""
    planned(project, ("accumulation", {"size": 8, "accumulation": 2}))
    ran(project, Sites(command=(sys.executable, "train.py"), cwd=str(project)), time.time() + 100)
    assert main(["run", "--plan", "run/plan.json", "--", "train.py"]) == 2
    out, err = capfd.readouterr()
    assert "cannot be put on this script" in err
    assert out == ""


def test_sites_of_the_run_beside_the_plan_hold_until_the_script_changes(project: Path) -> None:
    command = (sys.executable, "train.py", "--epochs", "90")
    site = {"kind": "optimizer", "file": "train.py", "line": 10, "end_line": 10}
    sites = Sites.model_validate({"command": (sys.executable, "train.py"), "cwd": str(project), "sites": [site]})
    seen = project.joinpath("train.py").stat().st_mtime
    ran(project, sites, seen)
    for when, known in ((seen + 100, None), (seen - 100, sites)):
        os.utime(project / "train.py", (when, when))
        assert script_run.known_sites(Path("run/plan.json"), command) == known
    assert script_run.known_sites(Path("run/plan.json"), (sys.executable, "other.py")) is None
