"""An arm of a script that comes to its end: it is run again, and warmed up no longer than leaves steps to measure."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.script.refusals import ScriptEnded
from autoopt.search.compare.arm import SETTLING_STEPS, SWITCHED_BLOCK
from autoopt.search.compare.script_arm import ScriptArm

STARTUP = Startup(
    build_seconds=0, setup_seconds=0, warmup_seconds=1, warmup_steps=5, steady=True, fixed_seconds=1.0
).model_dump()


class Short:
    """A process whose script trains for some seconds and has come to its end then."""

    can_freeze = True

    def __init__(self, clock: list[float], lasts: float) -> None:
        self.clock, self.lasts = clock, lasts

    def call(self, task: str, **arguments: Any) -> Any:
        seconds = arguments["max_seconds"]
        self.clock[0] += min(seconds, self.lasts)
        if seconds >= self.lasts:
            raise ScriptEnded(320)
        return STARTUP

    def close(self) -> None: ...


@pytest.mark.parametrize(("lasts", "starts"), [(60.0, 1), (2.0, 2), (0.0, 2)])
def test_a_short_script_is_warmed_up_for_half_as_long_as_it_lasts(lasts: float, starts: int) -> None:
    clock, launched = [0.0], []

    def launch() -> Any:
        launched.append(Short(clock, lasts))
        return launched[-1]

    arm = ScriptArm(launch, Plan(), timer=lambda: clock[0])
    if lasts:
        assert arm.warm_up(30.0).steady
    else:
        with pytest.raises(TrialFailed, match="give it more to train"):
            arm.warm_up(30.0)
    assert len(launched) == starts


class Counted:
    """A process whose script has so many steps, of which warming up takes ten."""

    can_freeze = True

    def __init__(self, steps: int) -> None:
        self.left, self.blocks = steps, list[int]()

    def call(self, task: str, **arguments: Any) -> Any:
        steps = arguments.get("min_steps", 10)
        self.left -= steps
        if self.left < 0:
            raise ScriptEnded(steps)
        if task != SWITCHED_BLOCK:
            return STARTUP
        self.blocks.append(steps)
        return Block(steps=steps, samples=steps, seconds=1.0, losses=(), step_seconds=()).model_dump()

    def close(self) -> None: ...


def test_a_process_that_switches_is_run_again_where_its_script_ends_and_settles_anew() -> None:
    launched = list[Counted]()

    def launch() -> Any:
        launched.append(Counted(24))
        return launched[-1]

    arm = ScriptArm(launch, Plan())
    arm.warm_up(10.0)
    blocks = [arm.switched_block(Plan(), 0.1, 4, 0.0) for _ in range(4)]
    assert [block.steps for block in blocks] == [4, 4, 4, 4]
    assert [process.blocks for process in launched] == [[SETTLING_STEPS, 4, 4], [SETTLING_STEPS, 4, 4]]
