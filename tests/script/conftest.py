"""Scripts of ``tests/scripts`` in real processes, each in a copy of its folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Plan, Sites
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial

SCRIPTS = Path(__file__).parents[1] / "scripts"

StartScript = Callable[..., LocalTrial]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the user's with all scripts in it."""
    return Path(shutil.copytree(SCRIPTS, tmp_path / "user"))


@pytest.fixture(scope="session")
def search_path() -> tuple[str, ...]:
    """``sys.path`` of an interpreter, without the folder of its script."""
    asked = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    return tuple(json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout))


@pytest.fixture
def start_script(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: Launcher,
    search_path: tuple[str, ...],
) -> Iterator[StartScript]:
    """``start_script(name, *words, sites=, plan=)`` starts a script and waits for its first step.

    ``fresh``: in an interpreter of its own, as a run watches it first; else by the fork server, which is the same to it
    (``test_forked``).
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that spin for each other are slow where cores are shared
    with contextlib.ExitStack() as started:

        def start(
            name: str,
            *words: str,
            sites: Sites | None = None,
            plan: Plan | None = None,
            seed: int = 0,
            disturbed: float = 0.0,
            same_draws: bool = False,
            fresh: bool = False,
            python: str = sys.executable,
            memory_limit: int | None = None,
            lean: bool = False,
            **script: Any,
        ) -> LocalTrial:
            command = (python, name, *words)
            path = None if fresh or python != sys.executable else search_path
            spec = TrialSpec(
                workload=" ".join(command),
                plan=plan or Plan(),
                directory=str(folder),
                seed=seed,
                disturbed=disturbed,
                script=ScriptSpec(command=command, sites=sites, folders=(str(folder),), path=path, **script),
                same_draws=same_draws,
                memory_limit_bytes=memory_limit,
                lean=lean,
            )
            process = launcher.start(spec, log=tmp_path / "script.log", timeout=120.0)
            assert isinstance(process, LocalTrial)
            return started.enter_context(process)

        yield start


def sites_of(process: LocalTrial, steps: int = 8, seconds: float = 1.0) -> Sites:
    """The sites of a watched script after some steps; one that does not evaluate in them is watched for ``seconds``."""
    return Sites.model_validate(process.call("autoopt.script.tasks:sites", timeout=120.0, steps=steps, seconds=seconds))
