"""One launcher for all tests of the room: what they start, they end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records.protocol import TrialSpec
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial

HERE = Path(__file__).parent
WORKLOADS = HERE.parent / "workloads"

Start = Callable[..., LocalTrial]


@pytest.fixture(scope="session")
def launcher() -> Iterator[Launcher]:
    with Launcher(live="mini_live:TrialContext") as launcher:
        yield launcher


@pytest.fixture
def start(launcher: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """``start(timeout=30, TINY_FAULT=..., **spec)`` starts a trial of the tiny workload."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    started: list[LocalTrial] = []

    def begin(timeout: float = 60.0, **options: Any) -> LocalTrial:
        for name in [name for name in options if name.startswith("TINY_")]:
            monkeypatch.setenv(name, str(options.pop(name)))
        spec = {
            "workload": f"{WORKLOADS / 'tiny.py'}:build",
            "search_path": (str(HERE),),
            "directory": str(tmp_path),
            **options,
        }
        started.append(launcher.start(TrialSpec(**spec), log=tmp_path / "logs" / "trial.log", timeout=timeout))
        return started[-1]

    yield begin
    for trial in started:
        trial.close()
