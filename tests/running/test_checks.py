"""Refusals before torch is imported or a directory made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys
from autoopt.cli.entry import run
code = run(sys.argv[1:])
print("code", code, "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["optimize", "mine"], 3, "it has no ':'"),
        (["optimize", "nine.py"], 3, "there is no script nine.py"),
        (["optimize", "nine.py:build"], 3, "did you mean mine.py?"),
        (["profile", "minee:build"], 3, "did you mean 'mine'?"),
        (["optimize", "mine:build", "--only", "amq"], 2, "did you mean amp?"),
        (["profile", "mine:build", "--out", "mine.py"], 2, "it is a file"),
        (["optimize", "mine:build", "--out", "old"], 2, "holds a run already (plan.json)"),
        (["train", "mine.py", "--plan", "old/plan.json"], 3, "it has no ':'"),
    ],
)
def test_a_command_is_refused_before_anything_starts(words: list[str], code: int, said: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise AssertionError('imported')\n")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "plan.json").write_text('{"schema_version": 1, "changes": []}')
    before = sorted(tmp_path.rglob("*"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == f"code {code} False\n", done.stderr
    assert said in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
