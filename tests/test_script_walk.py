"""The whole way of a user with a script: optimize, apply, train with the patch alone, revert, train with the plan."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from autoopt.records import Result
from modules import autoopt, run_python

SCRIPT = Path(__file__).parent / "scripts" / "walked.py"
WITHOUT = """
import runpy, sys
sys.modules["autoopt"] = None
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], None, "__main__")
"""
"""Runs a script in a process in which autoopt cannot be imported."""


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

    words = ("--budget", "150s", "--only", "forced_calls,garbage_collection", "--out", out, "--", "--epochs", "20")
    done = autoopt("optimize", "train.py", *words, cwd=project, timeout=400)
    assert tree(project) == before, "measuring changes no file"
    assert "Traceback" not in done.stderr
    result = Result.model_validate(json.loads((out / "result.json").read_text()))
    assert result.objective.metric == "valid accuracy"
    assert [change.strategy for change in result.best.plan.changes] == ["forced_calls"], done.stderr
    assert result.speedup.time_to_target.low > 1.0
    assert result.speedup.end_to_end_verified
    assert result.patch.diff == (out / "patch.diff").read_text()
    assert "-            gc.collect()" in result.patch.diff

    assert autoopt("apply", out, cwd=project).stdout == "train.py\n"
    assert tree(project).keys() == before.keys()
    trained = run_python("-c", WITHOUT, "train.py", "--epochs", "2", cwd=project)
    assert trained.stdout.count("valid accuracy") == 2
    (project / "last.pt").unlink()
    autoopt("revert", out, cwd=project)
    assert tree(project) == before

    words = ("--plan", out / "plan.json", "--", sys.executable, "train.py", "--epochs", "2")
    planned = autoopt("run", *words, cwd=project)
    assert planned.stdout == trained.stdout, "the same training, with the plan and with the patch"
    (project / "last.pt").unlink()
    assert tree(project) == before
