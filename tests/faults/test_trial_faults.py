"""Every fault of the table, for real: its verdict, its reason, and nothing left behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoopt.trial.parent import Launcher
from benchmarks.faults.__main__ import provoke
from benchmarks.faults.cases import FAULTS

CASES = FAULTS


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(autouse=True)
def own_temporary_files(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.mark.parametrize("fault", CASES, ids=[fault.name for fault in CASES])
def test_fault(launcher: Launcher, fault, tmp_path: Path) -> None:
    seen = provoke(launcher, fault, tmp_path)
    assert (seen.outcome, seen.left) == (fault.outcome, ()), seen.reason
    assert fault.matches(seen.outcome, seen.reason), seen.reason


def test_every_place_of_the_users_code_breaks_in_the_table() -> None:
    names = " ".join(fault.name for fault in CASES)
    for place in ("build", "dataset", "collate", "loss", "backward", "optimizer", "evaluate", "import"):
        assert f"error in {place}" in names
    assert {fault.outcome for fault in CASES} >= {
        "error",
        "crashed",
        "timeout",
        "out_of_memory",
        "not_finite",
        "survived",
    }
