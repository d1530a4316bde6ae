"""docs/how-to/write-a-strategy.md followed to the letter, the example that it names, and the reference of the API."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoopt.cli import main
from autoopt.records.facts import TensorFacts
from autoopt.setup import Setup
from autoopt.testing import StrategyTestCase
from autoopt.testing.strategies import sample_case, sample_facts
from modules import module_of

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "how-to" / "write-a-strategy.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "reference" / "strategy-api.md").read_text(encoding="utf-8")


class TestExample(StrategyTestCase):
    strategy = module_of(ROOT / "examples" / "custom_strategy.py").LabelSmoothing()

    def case(self) -> Any:
        labels = TensorFacts(path="[1]", shape=(64,), dtype="int64", bytes=512)
        return dataclasses.replace(sample_case(), workload=sample_facts(batch=(*sample_facts().batch, labels)))


def test_the_guide_works_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in re.findall(r"```python file=(\S+)\n(.*?)```", GUIDE, re.S):
        (tmp_path / name).write_text(text, encoding="utf-8")
    commands = re.findall(r"^\$ (.*)$", GUIDE, re.M)
    tests = next(command for command in commands if "pytest" in command)
    words = [sys.executable, *tests.removeprefix("python ").split(), "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    listing = next(command for command in commands if command.startswith("autoopt strategies"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(listing.split()[1:]) == 0
    assert "larger_epsilon" in capsys.readouterr().out


def test_the_reference_lists_every_method_of_a_setup_with_its_arguments() -> None:
    rows = dict(re.findall(r"^\| `(with_\w+)\((.*?)\)` \|", REFERENCE, re.M))
    for name, method in inspect.getmembers(Setup, inspect.isfunction):
        if not name.startswith("with_"):
            continue
        assert name in rows, f"{name} is missing in docs/reference/strategy-api.md"
        named = [p.name for p in inspect.signature(method).parameters.values() if p.kind is p.KEYWORD_ONLY]
        if named:
            assert rows[name].replace("=", "").split(", ") == named
