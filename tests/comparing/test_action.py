"""The GitHub Action, its steps run here: what it asks for, comments and hands over."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.comparing.conftest import JOB, Git, committed

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())


def run(step: dict[str, Any], temp: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """A step as a runner would run it, with what stands for its expressions."""
    given = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()} | inputs
    filled = {
        name: re.sub(r"\$\{\{ *inputs\.(\w+) *\}\}", lambda match: given[match[1]], text)
        for name, text in step["env"].items()
    }
    kept = {"RUNNER_TEMP": str(temp), "GITHUB_OUTPUT": str(temp / "output"), "GITHUB_STEP_SUMMARY": str(temp / "page")}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", step["run"]],
        env={**os.environ, **filled, **kept}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def compare_step() -> dict[str, Any]:
    (step,) = (step for step in ACTION["runs"]["steps"] if step.get("id") == "compare")
    return dict(step)


@pytest.mark.parametrize(("code", "answer"), [(0, "not_slower"), (5, "undecided"), (3, None)])
def test_the_step_asks_and_tells(
    code: int, answer: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = f"echo '{json.dumps({'answer': answer})}'; echo verdict > \"$RUNNER_TEMP/autoopt.md\"" if answer else ""
    stand_in = tmp_path / "bin" / "autoopt"
    stand_in.parent.mkdir()
    stand_in.write_text(f'#!/bin/bash\nprintf "%s\\n" "$@" > {tmp_path}/words\n{document}\nexit {code}\n')
    stand_in.chmod(0o700)
    monkeypatch.setenv("PATH", f"{stand_in.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    ledger = tmp_path / "kept" / "ledger.jsonl"
    done = run(
        compare_step(), tmp_path, command="python train.py --epochs 3", baseline="origin/main", ledger=str(ledger)
    )
    assert done.returncode == code, done.stderr
    words = (tmp_path / "words").read_text().split()
    assert words[:3] == ["compare", "--baseline", "origin/main"]
    assert words[-5:] == ["--", "python", "train.py", "--epochs", "3"]
    assert words[words.index("--ledger") + 1] == str(ledger)
    assert (tmp_path / "output").read_text() == f"answer={answer or 'failed'}\n"
    assert (tmp_path / "page").exists() == (answer is not None)


def test_the_ledger_is_handed_over_and_only_known_inputs_are_read() -> None:
    text = (ROOT / "action.yml").read_text()
    assert set(re.findall(r"inputs\.(\w+)", text)) <= set(ACTION["inputs"])
    (upload,) = (step for step in ACTION["runs"]["steps"] if "upload-artifact" in step.get("uses", ""))
    assert "${{ inputs.ledger }}" in upload["with"]["path"]


@pytest.mark.slow
def test_it_compares_two_revisions(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    committed(git, JOB, "slow")
    Path("job.py").write_text(JOB.replace("0.02", "0.005"))
    git("commit", "-qam", "fast")
    found = run(
        compare_step(), tmp_path, command="job.py:build", baseline="HEAD~1", require="faster", budget="40s",
        ledger=str(tmp_path / "ledger.jsonl"),
    )  # fmt: skip
    document = json.loads((tmp_path / "autoopt.json").read_text())
    assert document["answer"] in ("faster", "undecided"), document["reason"]
    assert found.returncode == (0 if document["answer"] == "faster" else 5), found.stderr
    assert "job.py:build" in (tmp_path / "page").read_text()
    assert len((tmp_path / "ledger.jsonl").read_text().splitlines()) == 2
