"""The whole way of a user with a script: optimize, apply, train with the patch alone, revert, train with the plan."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autoopt.records import Result

SCRIPT = Path(__file__).parent / "scripts" / "walked.py"
WITHOUT = """
import runpy, sys
sys.modules["autoopt"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], None, "__main__")
"""
"""Runs a script in a process in which autoopt cannot be imported."""


def called(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return done


def tree(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_script_is_optimized_patched_trained_and_put_back(tmp_path: Path) -> None:
    project, out = tmp_path / "project", tmp_path / "run"
    project.mkdir()
    shutil.copy(SCRIPT, project / "train.py")
    before = tree(project)

    words = ("--budget", "150s", "--only", "forced_calls,garbage_collection", "--out", str(out))
    done = called(project, "-m", "autoopt", "optimize", "train.py", *words, "--", "--epochs", "20")
    assert tree(project) == before, "measuring changes no file"
    assert "Traceback" not in done.stderr
    result = Result.model_validate(json.loads((out / "result.json").read_text()))
    assert result.objective.metric == "valid accuracy"
    assert [change.strategy for change in result.best.plan.changes] == ["forced_calls"], done.stderr
    assert result.speedup.time_to_target.low > 1.0
    assert result.speedup.end_to_end_verified
    assert result.patch.diff == (out / "patch.diff").read_text()
    assert "-            gc.collect()" in result.patch.diff

    goes_on_with(project, out)


def goes_on_with(project: Path, run: Path) -> None:
    """The patch put on, trained with by itself, taken off; and the plan trained with in its place."""
    before = tree(project)
    assert called(project, "-m", "autoopt", "apply", str(run)).stdout == "train.py\n"
    assert tree(project).keys() == before.keys()
    trained = called(project, "-c", WITHOUT, "train.py", "--epochs", "2")
    assert trained.stdout.count("valid accuracy") == 2
    (project / "last.pt").unlink()
    called(project, "-m", "autoopt", "revert", str(run))
    assert tree(project) == before

    plan = ("--plan", str(run / "plan.json"))
    planned = called(project, "-m", "autoopt", "run", *plan, "--", sys.executable, "train.py", "--epochs", "2")
    assert planned.stdout == trained.stdout, "the same training, with the plan and with the patch"
    (project / "last.pt").unlink()
    assert tree(project) == before
