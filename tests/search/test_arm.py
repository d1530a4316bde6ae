"""An arm in a trial's process: which tasks are called, with what, and for how long at most."""

from __future__ import annotations

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.records.messages import Block
from autoopt.search.compare.arena import block_length
from autoopt.search.compare.arm import EVALUATED, READY, RUN_BLOCK, WARM_UP, TrialArm
from autoopt.search.compare.comparison import Rule
from autoopt.testing.fakes import Behaviour, FakeMachine, NoiseModel


class Process:
    """Answers tasks from a fake arm and remembers what was asked."""

    can_freeze = False

    def __init__(self) -> None:
        self.inner = FakeMachine(behave=lambda plan: Behaviour(), noise=NoiseModel("quiet")).start(Plan(), "process")
        self.calls: list[tuple[str, float | None, dict]] = []
        self.states: list[str] = []

    def call(self, task, *, timeout=None, **arguments):
        self.calls.append((task, timeout, arguments))
        if task == READY:
            return self.inner.ready().model_dump()
        if task == WARM_UP:
            return self.inner.warm_up(**arguments).model_dump()
        if task == EVALUATED:
            return {"samples": self.inner.evaluated(**arguments)}
        return self.inner.block(**arguments).model_dump()

    def freeze(self) -> None:
        self.states.append("freeze")

    def thaw(self) -> None:
        self.states.append("thaw")

    def close(self) -> None:
        self.states.append("close")


def test_tasks_are_called_by_name_and_answers_are_documents() -> None:
    process = Process()
    arm = TrialArm(process, Plan())
    assert arm.ready().facts.name == "fake"
    assert arm.warm_up(5.0).steady
    assert isinstance(arm.block(0.3, 4, 0.1), Block)
    assert arm.evaluated(10.0) == 100
    assert [task for task, _, _ in process.calls] == [READY, WARM_UP, RUN_BLOCK, EVALUATED]
    assert process.calls[-1][2] == {"max_seconds": 10.0}
    assert process.calls[-2][2] == {"seconds": 0.3, "min_steps": 4, "ramp_seconds": 0.1, "cycle": 1}
    assert all(timeout >= 60 for _, timeout, _ in process.calls)


def test_freezing_and_closing_reach_the_process() -> None:
    process = Process()
    arm = TrialArm(process, Plan())
    arm.freeze()
    arm.thaw()
    arm.close()
    assert process.states == ["freeze", "thaw", "close"]
    assert not arm.can_freeze


@pytest.mark.parametrize(
    ("step", "steps", "ramp"),
    [(None, 3, 0.05), (0.01, 3, 0.05), (0.1, 3, 0.05), (0.15, 2, 0.05), (0.18, 2, 0.05), (0.25, 1, 0.0), (5.0, 1, 0.0)],
)
def test_blocks_of_long_steps_hold_fewer(step, steps, ramp) -> None:
    assert block_length(Rule(), step) == (0.2, steps, ramp)


def test_the_names_of_the_tasks_are_those_of_the_benchmark() -> None:
    from importlib import import_module

    for name in (READY, WARM_UP, RUN_BLOCK):
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(module), function))


def test_steps_that_train_on_no_sample_are_a_failure_of_that_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    empty = {**process.inner.block(0.3, 4, 0.1).model_dump(), "samples": 0}
    monkeypatch.setattr(process, "call", lambda task, **arguments: empty)
    with pytest.raises(TrialFailed, match="trained on no sample"):
        TrialArm(process, Plan()).block(0.3, 4, 0.1)
