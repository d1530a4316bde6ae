"""``autoopt profile --nproc 2``: messages are a stage of the round, and strategies are asked of two processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.options import make_options
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies
from autoopt.running.profile import profile
from autoopt.search.planner import Choice
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.parent import Launcher
from tests.distributed.conftest import HERE


@pytest.mark.slow
def test_messages_are_a_stage_of_the_profile(launcher: Launcher, tmp_path: Path) -> None:
    registry = load_strategies()
    base = TrialSpec(workload=f"{HERE / 'points.py'}:unused", directory=str(tmp_path))
    runner = TrialRunner(launcher, base, registry, tmp_path / "logs")
    found = profile(runner, make_options({"nproc": "2", "budget": "6s", "device": "cpu"}), Choice())
    assert found.baseline.plan.setting("ddp") == {"processes": 2, "find_unused": True}
    stage = next(stage for stage in found.round.stages if stage.name == "communication")
    assert stage.seconds > 0
    assert stage.exposed_seconds is not None
    assert stage.ceiling_seconds is not None
    told = {each.strategy: each for each in found.predictions}
    assert told["ddp_options"].applies
    assert not told["ddp"].applies
