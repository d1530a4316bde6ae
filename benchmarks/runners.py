"""Trials of a workload of this repository, as a run of autoopt starts them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from benchmarks.documents import ROOT


@contextmanager
def runner_of(workload: str, logs: Path | None = None) -> Iterator[TrialRunner]:
    """Starts trials of a workload.

    Args:
        workload: its import string, from the repository's folder.
        logs: the folder of their output, which is kept; None: one that is removed.
    """
    spec = TrialSpec(workload=workload, directory=str(ROOT), search_path=(str(ROOT),))
    with tempfile.TemporaryDirectory() as folder, Launcher() as launcher:
        yield TrialRunner(launcher, spec, load_strategies(), logs or Path(folder))
