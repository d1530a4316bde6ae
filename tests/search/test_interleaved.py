"""Whole trainings in turns: each one's own seconds, the idle one frozen, the ratio paired by seed."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from autoopt.benchmark.run import RunUnderWay
from autoopt.benchmark.trial_context import TrialContext
from autoopt.errors import TrialFailed
from autoopt.records import Curve
from autoopt.records.messages import TrainingRun
from autoopt.registry import Registry
from autoopt.search.accept.trainings import Turns, next_session, ratio_of_pairs
from autoopt.trial.protocol import TrialSpec


def run_of(seconds: float) -> TrainingRun:
    return TrainingRun(
        seed=0,
        curve=Curve(seed=0),
        seconds=seconds,
        training_seconds=seconds,
        evaluation_seconds=0.0,
        evaluations=0,
        steps=10,
        samples=10,
        fixed_seconds=0.0,
        reached=True,
    )


class Machine:
    """Two processes on one machine: no two may run at once, and its speed falls steadily."""

    def __init__(self) -> None:
        self.running: set[int] = set()
        self.now = 0.0
        self.legs: list[int] = []

    @property
    def slowness(self) -> float:
        return 1.0 + 0.02 * self.now


class FakeProcess:
    can_freeze = True

    def __init__(self, machine: Machine, name: int, work: float, fails: bool = False) -> None:
        self.machine, self.name, self.work, self.spent, self.fails = machine, name, work, 0.0, fails
        self.closed = False
        machine.running.add(name)

    def call(self, task: str, *, seconds: float, **_):
        assert self.machine.running == {self.name}, "the other one must be frozen"
        if self.fails:
            raise TrialFailed("crashed", "signal 9")
        self.machine.legs.append(self.name)
        took = min(seconds, self.work * self.machine.slowness)
        self.work -= took / self.machine.slowness
        self.machine.now += took
        self.spent += took
        over = self.work <= 1e-9
        return {
            "over": over,
            "seconds": self.spent,
            "run": run_of(self.spent).model_dump() if over else None,
        }

    def freeze(self) -> None:
        self.machine.running.discard(self.name)

    def thaw(self) -> None:
        self.machine.running.add(self.name)

    def close(self) -> None:
        self.closed = True
        self.machine.running.discard(self.name)


def test_a_machine_that_drifts_drifts_for_both() -> None:
    machine = Machine()
    one, other = FakeProcess(machine, 0, 40.0), FakeProcess(machine, 1, 20.0)
    before, after = Turns((one, other), {"max_seconds": 100.0}, seconds=40.0, speedup=2.0).run(first=0)
    assert machine.now > 60.0 * 1.3, "the machine did become slower"
    assert before.seconds / after.seconds == pytest.approx(2.0, rel=0.03)
    assert machine.legs[:4] == [0, 1, 1, 0]
    assert one.closed
    assert other.closed


class Endless(FakeProcess):
    """A training whose target is out of reach: its time is up at some step, or the other's word ends it."""

    def call(self, task: str, *, seconds: float, no_further: list[int] | None = None, **arguments):
        known = super().call(task, seconds=seconds, **arguments)
        steps = int(10 * self.spent / (1.0 if self.name == 0 else 0.5))
        ended = no_further is not None and steps >= no_further[0]
        if known["over"] or ended:
            why = "steps" if ended else "seconds"
            run = run_of(self.spent).model_copy(update={"reached": False, "steps": steps, "stopped": why})
            return {"over": True, "seconds": self.spent, "run": run.model_dump()}
        return known


def test_a_plan_is_trained_no_further_than_a_baseline_whose_time_was_up() -> None:
    machine = Machine()
    one, other = Endless(machine, 0, 40.0), Endless(machine, 1, 40.0)
    before, after = Turns((one, other), {"max_seconds": 40.0}, seconds=40.0, speedup=2.0).run(first=0)
    assert (before.stopped, after.stopped) == ("seconds", "steps")
    assert before.steps < after.steps <= 1.35 * before.steps
    assert after.seconds < 0.75 * before.seconds


class Counted(FakeProcess):
    """Twice as many steps a second as was thought of the plan."""

    def call(self, task: str, *, seconds: float, **arguments):
        known = super().call(task, seconds=seconds, **arguments)
        self.steps = int(10 * self.spent * (1 if self.name == 0 else 4))
        return {**known, "steps": self.steps}


def test_both_are_at_the_same_step_whatever_was_thought_of_the_plan() -> None:
    machine = Machine()
    one, other = Counted(machine, 0, 40.0), Counted(machine, 1, 40.0)
    turns = Turns((one, other), {"max_seconds": 40.0}, seconds=40.0, speedup=2.0)
    for side in (0, 1, 1, 0) * 4:
        one.freeze(), other.freeze()
        turns._leg(side)
    assert 0.8 < other.steps / one.steps < 1.3


def test_a_real_training_goes_no_further_than_it_is_told() -> None:
    run = RunUnderWay(live(), max_seconds=60.0, target=2.0)
    assert not run.go_on(0.02)
    step = run.training.steps + 3
    run.go_no_further(step, step - 1)
    assert run.go_on()
    found = run.document()
    assert (found.steps, found.stopped) == (step, "steps")
    assert [point.step for point in found.curve.points][-2:] == [step - 1, step], (
        "where the other was evaluated at its end"
    )


def test_one_that_fails_says_which() -> None:
    machine = Machine()
    processes = (FakeProcess(machine, 0, 5.0), FakeProcess(machine, 1, 5.0, fails=True))
    with pytest.raises(TrialFailed) as raised:
        Turns(processes, {"max_seconds": 10.0}, seconds=5.0).run(first=0)
    assert raised.value.side == 1


@pytest.mark.parametrize("scatter", [0.03, 0.08, 0.12])
def test_the_ratio_of_two_pairs_covers_the_truth(scatter: float) -> None:
    rng, held = np.random.default_rng(0), []
    for _ in range(600):
        found = ratio_of_pairs(list(math.log(1.5) + scatter * rng.standard_normal(2)), process_sd=0.02)
        held.append(found.low <= 1.5 <= found.high)
    assert np.mean(held) >= 0.93


def test_more_pairs_narrow_the_interval_and_a_restless_machine_widens_it() -> None:
    widths = [math.log(found.high / found.low) for found in (ratio_of_pairs([0.4] * n) for n in (1, 2, 4))]
    assert widths == sorted(widths, reverse=True)
    assert ratio_of_pairs([0.4] * 2, 0.3).high > ratio_of_pairs([0.4] * 2).high == ratio_of_pairs([0.4] * 2, 0.01).high


def test_the_next_session_is_predicted_with_more_than_the_error_of_the_mean() -> None:
    mean, following = ratio_of_pairs([0.3, 0.4]), next_session([0.3, 0.4])
    assert following.value == mean.value
    assert following.low < mean.low
    assert mean.high < following.high


def live() -> TrialContext:
    workload = Path(__file__).parent.parent / "workloads" / "breakers.py"
    return TrialContext(TrialSpec(workload=f"{workload}:build", device="cpu"), Registry([]))


def test_legs_of_a_real_training_are_the_training() -> None:
    whole = RunUnderWay(live(), max_seconds=60.0, confirm=1)
    assert whole.go_on()
    legs, count = RunUnderWay(live(), max_seconds=60.0, confirm=1), 0
    while not legs.go_on(0.02):
        count += 1
    assert count >= 1
    one, other = whole.document(), legs.document()
    assert one.losses == other.losses
    assert [point.metric for point in one.curve.points] == [point.metric for point in other.curve.points]
    assert one.curve.points[-1].metric >= 0.82 <= one.curve.points[-2].metric, "a second evaluation confirms the target"
