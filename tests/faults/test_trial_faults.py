"""Every planted fault of a trial and of a run: what becomes of it."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.trial.parent import Launcher
from benchmarks.faults import kills
from benchmarks.faults.__main__ import provoke
from benchmarks.faults.cases import FAULTS
from benchmarks.faults.runs import RUN_FAULTS

ELSEWHERE = {
    *("sys exit in build", "sys exit in evaluate, at=1", "nan in loss, at=20, target=none", "inf in loss, at=1"),
    *("host memory in build", "device memory in optimizer", "os exit in build"),
    *("hang in backward", "deadlock in import"),
    *(f"segfault in {place}" for place in ("backward", "optimizer", "evaluate, at=1")),
    *(f"{what} in build" for what in ("prints", "closed output", "chdir", "handlers", "threads", "children", "reseed")),
    *("faulty_apply_none", *(f"spoiler {how}" for how in ("segfault", "os_exit", "nan", "hang"))),
}
"""Faults that strike in another place among the quick ones, with the same outcome."""


@pytest.fixture(autouse=True)
def own_temporary_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.parametrize(
    "fault",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in ELSEWHERE)) for each in FAULTS],
)
def test_fault(launcher: Launcher, fault, tmp_path: Path) -> None:
    seen = provoke(launcher, fault, tmp_path)
    assert (seen.outcome, seen.left) == (fault.outcome, ()), seen.reason
    assert fault.matches(seen.outcome, seen.reason), seen.reason


def test_every_place_of_the_users_code_breaks_in_the_table() -> None:
    assert {fault.name for fault in FAULTS} > ELSEWHERE
    names = " ".join(fault.name for fault in FAULTS)
    for place in ("build", "dataset", "collate", "loss", "backward", "optimizer", "evaluate", "import"):
        assert f"error in {place}" in names
    assert {fault.outcome for fault in FAULTS if fault.name not in ELSEWHERE} >= {
        "error",
        "crashed",
        "timeout",
        "out_of_memory",
        "not_finite",
        "survived",
    }


# Faults of a whole run, on the command itself: exit code, a valid result, nothing left behind.

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
