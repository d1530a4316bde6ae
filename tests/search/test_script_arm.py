"""An arm of a script that comes to its end: it is run again, and warmed up no longer than leaves steps to measure."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.records.messages import Startup
from autoopt.script.refusals import ScriptEnded
from autoopt.search.compare.script_arm import ScriptArm

STARTUP = Startup(
    build_seconds=0, setup_seconds=0, warmup_seconds=1, warmup_steps=5, steady=True, fixed_seconds=1.0
).model_dump(mode="json")


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
