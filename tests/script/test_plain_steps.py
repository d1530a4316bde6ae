"""Steps of which next to nothing is noted: what is booked of them at once is what the clock would have told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from autoopt.benchmark import clock as clock_module
from autoopt.script import session
from autoopt.script.between import Goal
from autoopt.script.session import Session


class Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passes(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    for module in (clock_module, session):
        monkeypatch.setattr(module, "perf_counter", time)
    return time


class Script:
    """A training loop as its hooks tell of it, on the CPU; ``plain``: whether they may write down next to nothing."""

    def __init__(self, time: Time, plain: bool, enough: Callable[[int, float], bool] = lambda *_: False) -> None:
        self.time, self.session = time, Session(stops=False)
        self.session.train_on(torch.device("cpu"))
        assert self.session.clock is not None
        assert self.session.deferred_cost is not None
        self.clock = self.session.clock
        self.session.deferred_cost.begin()
        self.clock.every = 50
        self.clock.start()
        goal = Goal(session.LossRecorder(True), enough=enough, rests=0.0 if plain else None)
        self.session.goal = self.session._goal = goal
        self.goal = goal
        self.plain_steps = 0

    def wait(self, seconds: float) -> None:
        plain = self.session.plain
        if plain.on and not plain.waited:
            plain.opened.append(self.time())
            self.time.passes(seconds)
            plain.arrived.append(self.time())
            plain.given = 4
        else:
            self.session.data_begin()
            self.time.passes(seconds)
            self.session.data_end()
            self.session.count(4)

    def compute(self, seconds: float, *losses: float) -> None:
        plain = self.session.plain
        if not plain.on:
            self.session.forward_begin(prepared=False)
        self.time.passes(seconds)
        for loss in losses:
            if plain.on:
                plain.losses.append(loss)
            else:
                self.session.mark("forward")
                self.session.loss(torch.tensor(loss))

    def end(self) -> None:
        if self.session.plain.on:
            self.plain_steps += 1
            self.session.plain.ended()
        else:
            self.session.step_end()

    def step(self, number: int, *, losses: int = 1, batches: int = 1) -> None:
        self.time.passes(0.001 * (number % 3))
        for batch in range(batches):
            self.wait(0.002 + 0.001 * (number % 5))
            self.compute(0.01, *[float(number + part) for part in range(losses if batch == 0 else 0)])
        self.end()

    def told(self) -> tuple[Any, ...]:
        self.session.leave_plain()
        self.goal.put(self.clock.stop())
        lap, goal = self.goal.lap(), self.goal
        between = {stage: round(lap.stages[stage], 6) for stage in ("data", "other")}
        steps = [round(seconds, 9) for seconds in lap.steps]
        counted = (self.session.steps, self.session.samples, goal.steps, len(goal.away))
        return round(lap.seconds, 9), between, steps, goal.captured.losses(), counted


def told(time: Time, plain: bool, train: Callable[[Script], None]) -> tuple[Any, ...]:
    script = Script(time, plain)
    train(script)
    assert bool(script.plain_steps) is plain
    return script.told()


def all_steps(script: Script) -> None:
    for number in range(40):
        script.step(number)


def with_other_losses(script: Script) -> None:
    for number in range(40):
        script.step(number, losses=(1, 2, 0)[number % 3])


def with_second_batches(script: Script) -> None:
    for number in range(40):
        script.step(number, batches=2 if number % 4 == 0 else 1)


def with_the_same_batch_again(script: Script) -> None:
    for number in range(40):
        if number % 3 == 0:
            script.wait(0.002)
        script.compute(0.01, float(number))
        script.end()


def with_evaluations(script: Script) -> None:
    for number in range(40):
        script.step(number)
        if number % 10 == 9:
            script.time.passes(0.004)
            script.session.aside("evaluate")
            script.time.passes(1.0)


def with_a_metric(script: Script) -> None:
    for number in range(40):
        script.wait(0.002)
        if number % 7 == 0:
            script.session.metric(0.5)
        script.compute(0.01, float(number))
        script.end()


@pytest.mark.parametrize(
    "train",
    [
        all_steps,
        with_other_losses,
        with_second_batches,
        with_the_same_batch_again,
        with_evaluations,
        with_a_metric,
    ],
    ids=lambda f: f.__name__,
)
def test_plain_steps_are_booked_as_the_clock_would_have_told_them(time: Time, train: Callable[[Script], None]) -> None:
    assert told(time, True, train) == told(time, False, train)


def test_a_metric_that_is_printed_and_logged_is_told_once(time: Time) -> None:
    """Else its crossing of the target would confirm itself."""
    script = Script(time, plain=True)
    for value in (0.5, 0.5004, 0.6):
        script.session.metric(value)
    assert [told for _, _, told in script.goal.metrics] == [0.5, 0.6]


def test_a_goal_that_rests_is_asked_again_when_its_time_is_over(time: Time) -> None:
    asked: list[int] = []

    def enough(done: int, elapsed: float) -> bool:
        asked.append(done)
        return False

    script = Script(time, True, enough)
    script.goal.rests, script.goal.looks = 0.1, True
    script.clock.until_fine = 1000
    script.clock.fine = False
    for _ in range(40):
        script.wait(0.01)
        script.compute(0.01, 1.0)
        script.end()
    assert asked[:4] == [1, 6, 11, 16], "five steps of 20 ms are 100 ms"
    assert script.session.steps == 36, "what was noted since is booked when somebody asks"


def test_the_last_step_of_a_goal_is_never_rested_over(time: Time) -> None:
    script = Script(time, True, lambda done, _: done >= 23)
    script.session.stops = True
    script.goal.rests, script.goal.most = 1e9, 23
    stood = threading.Event()

    def stand(answer: Any) -> None:
        stood.set()
        assert answer is script.goal

    script.session._stand = stand  # type: ignore[method-assign]
    for number in range(23):
        assert not stood.is_set()
        script.step(number)
    assert stood.is_set()
    assert script.goal.steps == 23


def test_what_a_step_has_computed_before_its_second_batch_is_not_booked_beside_the_steps(time: Time) -> None:
    script = Script(time, False)
    for number in range(40):
        script.step(number, batches=2)
    seconds, between, *_ = script.told()
    waits = sum(2 * (0.002 + 0.001 * (number % 5)) for number in range(40))
    assert between["data"] == pytest.approx(waits)
    assert between["other"] < 0.1 * (seconds - waits)
