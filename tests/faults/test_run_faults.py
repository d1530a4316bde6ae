"""Faults of a whole run, on the command itself: exit code, a valid result, nothing left behind."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks.faults import kills
from benchmarks.faults.runs import RUN_FAULTS

QUICK = ("read_only",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in RUN_FAULTS]
)
def test_run_fault(name: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rf-") as folder:
        outcome = RUN_FAULTS[name](Path(folder))
    if outcome is None:
        pytest.skip("needs the right to mount a file system")
    assert outcome.wrong == ()


@pytest.mark.slow
def test_killed_at_random_moments_it_loses_the_step_under_way_and_repeats_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["kills.py", "--kills", "5", "--seed", "1"])
    assert kills.main() == 0
    tally = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tally["kills"] >= 5
    assert tally["results"] == tally["runs"]
    assert tally["repeated"] == 0
    assert tally["most_lost_by_one_kill"] <= 1
