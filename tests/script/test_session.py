"""Steps of a script as its hooks report them to the session, on a clock that is set by hand."""

from __future__ import annotations

import pytest
import torch

from autoopt.benchmark import clock as clock_module
from autoopt.script import session
from autoopt.script.between import Goal
from autoopt.script.session import Session


class Time:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    for module in (clock_module, session):
        monkeypatch.setattr(module, "perf_counter", time)
    return time


def training() -> tuple[Session, Goal]:
    """A session on the CPU that trains to no end."""
    found = Session(stops=False)
    found.train_on(torch.device("cpu"))
    assert found.clock is not None
    assert found.deferred_cost is not None
    found.deferred_cost.begin()
    found.clock.every = 50
    found.clock.start()
    found.goal = found._goal = Goal(session.LossRecorder(True), enough=lambda *_: False)
    return found, found.goal


def test_a_metric_that_is_printed_and_logged_is_told_once(time: Time) -> None:
    """Else its crossing of the target would confirm itself."""
    script, goal = training()
    for value in (0.5, 0.5004, 0.6):
        script.metric(value)
    assert [told for _, _, told in goal.metrics] == [0.5, 0.6]


def test_what_a_step_has_computed_before_its_second_batch_is_not_booked_beside_the_steps(time: Time) -> None:
    script, goal = training()
    for number in range(40):
        time.now += 0.001 * (number % 3)
        for _ in range(2):
            script.data_begin()
            time.now += 0.002 + 0.001 * (number % 5)
            script.data_end()
            script.count(4)
            script.forward_begin(prepared=False)
            time.now += 0.01
        script.mark("forward")
        script.loss(torch.tensor(float(number)))
        script.step_end()
    assert script.clock is not None
    goal.put(script.clock.stop())
    lap = goal.lap()
    waits = sum(2 * (0.002 + 0.001 * (number % 5)) for number in range(40))
    assert lap.stages["data"] == pytest.approx(waits)
    assert lap.stages["other"] < 0.1 * (lap.seconds - waits)
    assert goal.captured.losses() == tuple(map(float, range(40)))
    assert script.samples == 40 * 8
