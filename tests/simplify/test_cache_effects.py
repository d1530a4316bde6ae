"""Stages in the step's own order: ratios of known truth, when they are measured, and what the graph makes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records import Plan, Resource, Round, Simulation, Stage
from autoopt.simplify import contention
from autoopt.simplify.drilldown import measure_inputs
from autoopt.simplify.pipeline import Pipeline


class Timeline:
    """A clock that moves by what is done: a call costs more after something else than after itself."""

    def __init__(self, alone: float, after: float) -> None:
        self.alone, self.after = alone, after
        self.now, self.cold = 0.0, True

    def call(self) -> None:
        self.now += self.after if self.cold else self.alone
        self.cold = False

    def other(self) -> None:
        self.now += 3.0
        self.cold = True

    def clock(self) -> float:
        return self.now


@given(alone=st.floats(0.01, 1.0), times=st.floats(0.5, 20.0))
def test_a_ratio_is_that_of_after_another_thing_and_after_itself(alone: float, times: float) -> None:
    line = Timeline(alone, alone * times)
    found = contention.ratio_after(line.call, line.other, 100.0, line.clock, line.clock)
    assert found == pytest.approx(min(contention.HIGHEST_RATIO, max(1.0, times)))


def test_what_happens_in_one_turn_of_ten_is_part_of_the_mean() -> None:
    line, turns = Timeline(1.0, 1.0), iter(range(10_000))

    def sometimes() -> None:
        line.other()
        line.after = 11.0 if next(turns) % 10 == 9 else 1.0

    assert contention.ratio_after(line.call, sometimes, 2000.0, line.clock, line.clock) == pytest.approx(2.0, rel=0.05)


def round_of(workers: int = 0, **known: Any) -> Round:
    seconds = {"storage": 0.004, "preparation": 0.002, "forward": 0.001, "backward": 0.001}
    stages = tuple(
        Stage(
            name=name,
            resource=Resource.HOST,
            seconds=value / max(workers, 1) if name in ("storage", "preparation") else value,
            parallel=max(workers, 1) if name in ("storage", "preparation") else 1,
        )
        for name, value in seconds.items()
    )
    simulation = Simulation.model_validate({"cores": 16, "threads": 1, "workers": workers, **known})
    return Round(index=0, plan=Plan(), step_seconds=0.008, stages=stages, simulation=simulation, simulation_error=0.0)


def test_batches_between_steps_and_steps_after_batches_cost_what_they_cost_there() -> None:
    assert Pipeline(round_of()).simulate() == pytest.approx(0.008)
    assert Pipeline(round_of(in_turn=1.5)).simulate() == pytest.approx(0.009)
    assert Pipeline(round_of(rested=2.0, rest_seconds=0.006)).simulate() == pytest.approx(0.010)
    longer_ago = Pipeline(round_of(rested=2.0, rest_seconds=0.012))
    assert longer_ago.simulate() == pytest.approx(0.009), "half the pause, half of what it costs"


def test_workers_that_keep_up_leave_no_pause_and_prepare_one_batch_after_the_other() -> None:
    pipeline = Pipeline(round_of(in_turn=3.0, rested=2.0, rest_seconds=0.006))
    assert pipeline.simulate(workers=8) == pytest.approx(0.002, rel=0.02)
    assert pipeline.simulate(workers=1) == pytest.approx(0.006, rel=0.05), "the one worker decides"
    assert pipeline.simulate({"storage": 0.0, "preparation": 0.0}) == pytest.approx(0.002)


def test_cache_effects_of_a_training_are_measured_and_stays_as_it_was(plant: Callable[[str], Any]) -> None:
    training = plant("def build(): return workload()").training()

    batch = next(iter(training.loader.loader))
    inputs = measure_inputs(training.loader.loader, 0.2)
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    found = contention.cache_effects_of(training, [batch], inputs, 1e-3, 1.0)
    assert found["cold_ratio"] >= 1.0
    assert found["wakeup_ratio"] >= 1.0
    assert found["pause_seconds"] == inputs.loader.seconds  # type: ignore[union-attr]
    contention.cold_batches(training, [batch], 0.05)
    assert not all(torch.equal(a, b) for a, b in zip(before, training.model.parameters(), strict=True)), (
        "steps are real"
    )


def test_what_is_long_is_not_repeated_so_often(plant: Callable[[str], Any]) -> None:
    training = plant("def build(): return workload()").training()
    inputs = measure_inputs(training.loader.loader, 0.2)
    assert contention.cache_effects_of(training, [next(iter(training.loader.loader))], inputs, 10.0, 1.0) == {}
    unmeasured = inputs.model_copy(update={"sample": None})
    assert contention.cache_effects_of(training, [next(iter(training.loader.loader))], unmeasured, 1e-3, 1.0) == {}
