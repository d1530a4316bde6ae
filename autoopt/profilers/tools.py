"""Profilers that a user knows, run over the training as autoopt assembles it: ``autoopt profile --with``.

Each runs some steps in a trial's process and ends in one summary and a file.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from autoopt.errors import require
from autoopt.records import Plan, Profiled
from autoopt.records.drift import Drift
from autoopt.search.trial_runner import TrialRunner

_SECONDS = 300.0
_STEPS = 20
"""Optimizer steps that are profiled."""
_TASKS = {"torch": "torch_profiler"}


def check_tools(tools: Iterable[str]) -> None:
    """Refuses what cannot run here, before anything is built.

    Raises:
        EnvironmentLacks: its package is missing.
    """
    if "lines" in tools:
        require("line_profiler", what="--with lines: ")


def profile_with(runner: TrialRunner, tool: str, folder: Path) -> Profiled:
    """Runs a profiler over the baseline, in a process of its own.

    Args:
        folder: where its files go.

    Raises:
        EnvironmentLacks: see :func:`check_tools`.
        TrialFailed: the training or the profiler ended badly.
    """
    check_tools([tool])
    folder.mkdir(parents=True, exist_ok=True)
    task = f"autoopt.profilers.tasks:{_TASKS.get(tool, tool)}"
    found = runner.ask(
        Plan(), task, timeout=_SECONDS, label=f"profile-{tool}", folder=str(folder), steps=_STEPS
    )  # fmt: skip
    return Profiled(tool=tool, **found)


def watched(runner: TrialRunner, seconds: float) -> Drift:
    """Watches the baseline for so many seconds, or to its own end, for what makes it grow slower.

    Raises:
        TrialFailed: the training ended badly.
    """
    task, seconds = "autoopt.profilers.watch:watch", max(seconds, 0.0)
    found = runner.ask(Plan(), task, timeout=2 * seconds + _SECONDS, label="watch", seconds=seconds)
    return Drift.model_validate(found)
