"""Looks against a live incumbent, in simulated time."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from autoopt.records import Change, Noise, Plan
from autoopt.search.compare.comparison import Rule
from autoopt.search.race import Race
from autoopt.testing import Behaviour, FakeMachine, NoiseModel


def looks(machine: FakeMachine, count: int) -> list[float]:
    """Speedups that looks at candidates, one after the other, show."""
    race = Race(machine.start, Plan(), Rule(max_seconds=60), clock=machine.clock, rng=np.random.default_rng(0))
    with closing(race):
        plans = [Plan(changes=(Change(strategy=f"candidate_{number}"),)) for number in range(count)]
        found = [race.look(plan, Noise(), warm_up_seconds=5.0) for plan in plans]
    assert not machine.alive, "processes were left behind"
    return [seen.estimate.value for seen in found if seen.estimate is not None]


def test_one_incumbent_serves_all_looks() -> None:
    machine = FakeMachine(noise=NoiseModel("quiet"))
    assert looks(machine, 4) == pytest.approx([1.0] * 4)
    assert [label for _, label in machine.started].count("incumbent") == 1


def test_candidates_are_not_measured_against_an_incumbent_that_has_become_faster_with_age() -> None:
    behaviour = Behaviour(young=1.25, young_steps=150)
    machine = FakeMachine(behave=lambda plan: behaviour, noise=NoiseModel("quiet"))
    assert looks(machine, 6) == pytest.approx([1.0] * 6, rel=0.08)


def test_bursts_of_other_programs_do_not_pass_for_age() -> None:
    """Each fresh incumbent costs a start; 42 were started for these eighty looks."""
    started = 0
    for seed in range(10):
        machine = FakeMachine(noise=NoiseModel("heavy"), seed=seed)
        looks(machine, 8)
        started += [label for _, label in machine.started].count("incumbent")
    assert started <= 20
