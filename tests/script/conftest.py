"""Scripts of ``tests/scripts`` in real processes, each in a copy of its folder."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Change, Objective, Plan, Sites
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block
from autoopt.records.protocol import ScriptSpec, TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.process import LocalTrial

SCRIPTS = Path(__file__).parents[1] / "scripts"
OBJECTIVE = Objective(metric=None, mode="min", target=None, target_source="baseline", tolerance=0.005, min_gain=0.01)
"""Of a script that names no metric."""


def plan_of(strategy: str, **setting: Any) -> Plan:
    """A plan of one change."""
    return Plan(changes=(Change(strategy=strategy, setting=setting),))


class StartScript:
    """Starts scripts in a folder, each to the end of its first step; all are ended with it.

    Args:
        path: ``sys.path`` of a script that is forked.
    """

    def __init__(self, launcher: Launcher, folder: Path, log: Path, path: tuple[str, ...]) -> None:
        self._launcher, self._folder, self._log, self._path = launcher, folder, log, path
        self.started = contextlib.ExitStack()

    def __call__(
        self,
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
        """``fresh``: in an interpreter of its own; else forked, which is the same to it (``test_forked``)."""
        command, here = (python, name, *words), str(self._folder)
        path = None if fresh or python != sys.executable else self._path
        spec = TrialSpec(
            workload=" ".join(command),
            plan=plan or Plan(),
            directory=here,
            seed=seed,
            disturbed=disturbed,
            script=ScriptSpec(command=command, sites=sites, folders=(here,), path=path, **script),
            same_draws=same_draws,
            memory_limit_bytes=memory_limit,
            lean=lean,
        )
        process = self._launcher.start(spec, log=self._log, timeout=120.0)
        assert isinstance(process, LocalTrial)
        return self.started.enter_context(process)

    def watch(self, name: str, *words: str, steps: int = 8, seconds: float = 1.0, **how: Any) -> Sites:
        """The sites of a script, which is then ended."""
        with self(name, *words, **how) as process:
            return sites_of(process, steps, seconds)

    def losses(self, name: str, *words: str, steps: int, **how: Any) -> tuple[float | None, ...]:
        """The losses of so many steps of a script, which is then ended."""
        with self(name, *words, **how) as process:
            return block_of(process, steps).losses


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
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads that spin for each other are slow where cores are shared
    start = StartScript(launcher, folder, tmp_path / "script.log", search_path)
    with start.started:
        yield start


def runner_of(
    launcher: Launcher, folder: Path, *words: str, memory_limit: int | None = None, **script: Any
) -> TrialRunner:
    """A runner of a script's trials, whose logs stand beside the folder."""
    how = ScriptSpec(command=(sys.executable, *words), folders=(str(folder),), **script)
    base = TrialSpec(workload=" ".join(words), directory=str(folder), script=how, memory_limit_bytes=memory_limit)
    return TrialRunner(launcher, base, load_strategies([]), folder.parent / "logs")


def facts_of(process: LocalTrial) -> WorkloadFacts:
    """Facts that a trial reports about its workload."""
    return WorkloadFacts.model_validate(process.call("autoopt.benchmark.tasks:facts", timeout=300.0))


def sites_of(process: LocalTrial, steps: int = 8, seconds: float = 1.0) -> Sites:
    """The sites of a watched script after some steps; one that does not evaluate in them is watched for ``seconds``."""
    script = process.ranks[0].spec.script
    assert script is not None
    task = "tests.script.in_process:sites" if script.command[0] == sys.executable else "autoopt.script.tasks:sites"
    return Sites.model_validate(process.call(task, timeout=120.0, steps=steps, seconds=seconds))


def block_of(process: LocalTrial, steps: int) -> Block:
    """So many further steps of a trial."""
    return Block.model_validate(process.call("autoopt.benchmark.tasks:probe_losses", timeout=60.0, steps=steps))


def edited(folder: Path, script: str, *edits: tuple[str, str], to: str = "") -> str:
    """The text of a script after these edits, which is written in its place, or to another file."""
    text = (folder / script).read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    (folder / (to or script)).write_text(text)
    return text
