"""The profile of a script: what is known of its first steps is told before its stages are measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoopt.events import Event, FirstLook, Opportunities
from autoopt.options import make_options
from autoopt.registry import load_strategies
from autoopt.search.planner import Choice
from autoopt.search.profile import profile
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from autoopt.trial.protocol import ScriptSpec, TrialSpec


@pytest.mark.slow
def test_a_profile_tells_its_first_look_before_it_measures(folder: Path, tmp_path: Path) -> None:
    command = (sys.executable, "plain.py", "100000")
    script = ScriptSpec(command=command, folders=(str(folder),))
    base = TrialSpec(workload=" ".join(command), directory=str(folder), script=script)
    told: list[Event] = []
    with Launcher(fork_server=False) as launcher:
        runner = TrialRunner(launcher, base, load_strategies([]), tmp_path / "logs")
        found = profile(runner, make_options({"budget": "6s", "device": "cpu"}), Choice(), announce=told.append)
    kinds = [event.phase if event.__class__.__name__ == "PhaseStarted" else type(event) for event in told]  # type: ignore[attr-defined]
    assert kinds.index(FirstLook) < kinds.index(Opportunities) < kinds.index("simplify")
    assert [event.at for event in told] == sorted(event.at for event in told)
    assert found.sites is not None
