"""Scripts of ``tests/scripts`` in real processes of their own, each in a copy of its folder."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Plan, Sites
from autoopt.trial.parent import Launcher
from autoopt.trial.process import TrialProcess
from autoopt.trial.protocol import ScriptSpec, TrialSpec

SCRIPTS = Path(__file__).parents[1] / "scripts"

StartScript = Callable[..., TrialProcess]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the user's with all scripts in it."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "user"))


@pytest.fixture
def start_script(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartScript]:
    """``start_script(name, *words, sites=, plan=)`` starts a script and waits for its first step."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that spin for each other are slow where cores are shared
    with Launcher(fork_server=False) as launcher:

        def start(
            name: str,
            *words: str,
            sites: Sites | None = None,
            plan: Plan | None = None,
            seed: int = 0,
            disturbed: float = 0.0,
            same_draws: bool = False,
            python: str = sys.executable,
            **script: Any,
        ) -> TrialProcess:
            command = (python, name, *words)
            spec = TrialSpec(
                workload=" ".join(command),
                plan=plan or Plan(),
                directory=str(folder),
                seed=seed,
                disturbed=disturbed,
                script=ScriptSpec(command=command, sites=sites, folders=(str(folder),), **script),
                same_draws=same_draws,
            )
            return launcher.start(spec, log=tmp_path / "script.log", timeout=120.0)

        yield start


def sites_of(process: TrialProcess, steps: int = 8) -> Sites:
    """The sites of a watched script after some steps."""
    return Sites.model_validate(process.call("autoopt.script.tasks:sites", timeout=120.0, steps=steps, seconds=60.0))
