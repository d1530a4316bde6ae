"""What strategies are predicted to bring a script is told before anything of it is compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.events import NoiseMeasured, Predicted
from autoopt.records import Sites
from simulated import World, product, strategy

SITES = Sites(command=("python", "train.py"), cwd="/", step_seconds=0.05)


def world(folder: Path, budget: float, sites: Sites | None = SITES) -> World:
    found = World(folder, strategy("a"), strategy("b"), speed=product({"a": 1.4, "b": 1.1}), budget=budget)
    runner: Any = found.runner
    runner.watched = lambda ask=None: sites
    return found


def profiles(of: World) -> list[str]:
    """The kinds of steps in which it was measured from the inside, the first two."""
    return [step.kind for step in of.run.took if step.kind in ("diagnose", "examine")][:2]


@pytest.mark.parametrize("budget", [240.0, 3000.0])
def test_predictions_of_a_script_come_before_its_first_comparison(tmp_path: Path, budget: float) -> None:
    run = world(tmp_path / "run", budget)
    run.go()
    kinds = [type(event) for event in run.events]
    assert kinds.index(Predicted) < kinds.index(NoiseMeasured)
    told = next(event for event in run.events if isinstance(event, Predicted))
    assert {each.strategy for each in told.predictions} == {"a", "b"}


def test_on_a_short_budget_that_profile_is_the_first_round_s(tmp_path: Path) -> None:
    short, long = world(tmp_path / "short", 240.0), world(tmp_path / "long", 3000.0)
    for run in (short, long):
        run.go()
    assert short.loop.state is not None
    assert profiles(short)[0] == "diagnose"
    assert profiles(long) == ["diagnose", "examine"]
    examined = [step for step in short.run.took if step.kind == "examine"]
    assert len(examined) == len(short.loop.state.rounds) - 1


def test_a_function_that_builds_is_profiled_in_its_round(tmp_path: Path) -> None:
    run = world(tmp_path / "run", 240.0, sites=None)
    run.go()
    assert profiles(run)[0] == "examine"
