"""An arm whose time is taken by the judging process: its own clock and account of time are not asked."""

from __future__ import annotations

from collections.abc import Callable

from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arm import TrialArm, TrialProcess

Clock = Callable[[], float]

_ASKED = 3


class WatchedArm(TrialArm):
    """Seconds of blocks and of the start are those between question and answer on ``clock``.

    The ramp after a thaw is a question of its own, so that all of the measured block lies between two looks at the
    clock; the answer itself takes a fraction of a millisecond of some tenths of a second, on both sides alike.

    Args:
        process: a started trial.
        plan: what it trains with.
        clock: of the judging process.
        began: on that clock, when its start was asked for.
    """

    def __init__(self, process: TrialProcess, plan: Plan, clock: Clock, began: float) -> None:
        super().__init__(process, plan)
        self._clock, self._began = clock, began
        self.start_seconds: float | None = None

    def warm_up(self, max_seconds: float) -> Startup:
        startup = super().warm_up(max_seconds)
        self._step_seconds = self._one_step()
        spent = self._clock() - self._began - (startup.warmup_steps + _ASKED) * self._step_seconds
        self.start_seconds = max(spent, 0.0)
        return startup.model_copy(update={"fixed_seconds": self.start_seconds})

    def _one_step(self) -> float:
        """The quickest of some: what a step takes where nothing disturbs it."""
        seconds = []
        for _ in range(_ASKED):
            began = self._clock()
            super().block(0.0, 1, 0.0)
            seconds.append(self._clock() - began)
        return min(seconds)

    def block(self, seconds: float, min_steps: int, ramp_seconds: float) -> Block:
        if ramp_seconds:
            super().block(ramp_seconds, 1, 0.0)
        began = self._clock()
        block = super().block(seconds, min_steps, 0.0)
        return block.model_copy(update={"seconds": self._clock() - began, "late_seconds": 0.0})
