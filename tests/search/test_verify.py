"""A plan that probes passed, and whose whole training is another one: what goes, and what may stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import JsonDict, Plan, Verdict
from autoopt.setup import Setup
from autoopt.strategy import Risk
from autoopt.testing.fakes import Behaviour
from benchmarks.search.cases import CASES
from benchmarks.search.minutes import simulated
from simulated import World, product, strategy, verdicts

GAINS = {"low": 1.5, "layout": 1.3, "exact": 1.2}


def saturated(step: int) -> float:
    """Falls as usual, and then stands where a loss of probabilities ends that are rounded to 0 and 1."""
    return 2.0 / (1.0 + 0.01 * step) if step < 100 else 33.3


def late(plan: Plan, behaviour: Behaviour) -> Behaviour:
    """``low`` breaks the training at a step that no probe comes to."""
    behaviour = replace(behaviour, quality="equivalent" if set(plan.names()) - {"exact"} else "identical")
    return replace(behaviour, loss=saturated) if "low" in plan.names() else behaviour


def low_precision(self: object, setup: Setup, setting: JsonDict) -> Setup:
    return setup.with_precision(dtype="bfloat16")


def world_of(folder: Path, budget: float) -> World:
    return World(
        folder,
        strategy("low", risk=Risk.NUMERIC, apply=low_precision),
        strategy("layout", risk=Risk.NUMERIC),
        strategy("exact"),
        speed=product(GAINS),
        behave=late,
        budget=budget,
    )


def test_the_change_that_rounds_most_goes_first(tmp_path: Path) -> None:
    outcome = world_of(tmp_path, 3000.0).go()
    assert outcome.best.plan.names() == ("layout", "exact")
    assert Verdict.QUALITY_LOST in verdicts(outcome)["low"]
    assert outcome.speedup.end_to_end_verified


@pytest.mark.parametrize("budget", [120.0, 180.0, 240.0, 300.0, 400.0, 600.0])
def test_what_is_left_of_a_plan_that_trained_otherwise_is_trained_or_given_up(tmp_path: Path, budget: float) -> None:
    world = world_of(tmp_path, budget)
    outcome = world.go()
    best = outcome.best.plan
    assert "low" not in best.names() or not any("low" in plan.names() for plan, _ in world.runner.trained)
    if any("low" in plan.names() for plan, _ in world.runner.trained) and "layout" in best.names():
        assert any(plan == best for plan, _ in world.runner.trained)
    assert world.clock() <= 1.05 * budget


@pytest.mark.parametrize("seed", [1, 3])
def test_what_is_left_without_a_companion_is_tested_within_the_budget_or_the_whole_stands(
    tmp_path: Path, seed: int
) -> None:
    """Slow steps: to leave a companion out takes half a minute, and what is left another one at the end."""
    world = simulated(CASES["slow images"], 180.0, seed, tmp_path)
    outcome = world.go()
    assert "amp" in outcome.best.plan.names()
    assert world.clock() <= 1.02 * 180.0
