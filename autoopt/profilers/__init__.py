"""Profilers that a user knows, run over the training as autoopt assembles it: ``autoopt profile --with``.

Each runs some steps in a trial's process and ends in one summary and a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from autoopt.errors import EnvironmentLacks
from autoopt.records import Plan, Profiled
from autoopt.records.drift import Drift
from autoopt.search.trial_runner import TrialRunner

TOOLS = ("torch", "cprofile", "lines", "memory")
_SECONDS = 300.0
_STEPS = 20
"""Optimizer steps that are profiled."""
_TASKS = {"torch": "torch_profiler"}


def check_tools(tools: Iterable[str]) -> None:
    """Refuses what cannot run here, before anything is built.

    Raises:
        EnvironmentLacks: its package or program is missing.
    """
    for tool in tools:
        missing = {
            "lines": not find_spec("line_profiler") and "line_profiler",
            "torch": not find_spec("torch_tb_profiler") and "torch-tb-profiler",
        }.get(tool)
        if missing:
            raise EnvironmentLacks(
                f"--with {tool}: {missing} is not installed", hint="pip install 'torch-autoopt[profilers]'"
            )


def profile_with(runner: TrialRunner, tools: Iterable[str], folder: Path) -> tuple[Profiled, ...]:
    """Runs profilers over the baseline, each in a process of its own.

    Args:
        folder: where their files go.

    Raises:
        EnvironmentLacks: see :func:`check_tools`.
        TrialFailed: the training or the profiler ended badly.
    """
    tools = tuple(tools)
    check_tools(tools)
    folder.mkdir(parents=True, exist_ok=True)
    found = []
    for tool in tools:
        answer = runner.ask(
            Plan(),
            f"autoopt.profilers.tasks:{_TASKS.get(tool, tool)}",
            timeout=_SECONDS,
            label=f"profile-{tool}",
            folder=str(folder),
            steps=_STEPS,
        )
        found.append(Profiled(tool=tool, **answer))
    return tuple(found)


def watched(runner: TrialRunner, seconds: float) -> Drift:
    """Watches the baseline for so many seconds, or to its own end, for what makes it grow slower.

    Raises:
        TrialFailed: the training ended badly.
    """
    task, seconds = "autoopt.profilers.watch:watch", max(seconds, 0.0)
    found = runner.ask(Plan(), task, timeout=2 * seconds + _SECONDS, label="watch", seconds=seconds)
    return Drift.model_validate(found)
