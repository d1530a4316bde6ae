"""Arms whose time is taken by the judging process: their own clock and account of time are not asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from autoopt.benchmark.contents import added
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arm import TrialArm, TrialProcess
from autoopt.search.compare.script_arm import ScriptArm

Clock = Callable[[], float]

_ASKED = 3


@dataclass
class SideSeconds:
    """One side as the judging process saw it: seconds of its starts; samples (None where they cannot be counted), steps
    and seconds of all its blocks."""

    starts: list[float] = field(default_factory=list)
    samples: int | None = 0
    steps: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Samples, or steps where those are the unit, per second over all blocks together, however long any took."""
        count = self.steps if self.samples is None else self.samples
        return count / self.seconds if count and self.seconds else None


class WatchedArm(TrialArm):
    """Seconds of blocks and of the start are those between question and answer on ``clock``.

    The ramp after a thaw is a question of its own, so that all of the measured block lies between two looks at the
    clock; the answer itself takes a fraction of a millisecond of some tenths of a second, on both sides alike.
    Nothing is taken out: a script's evaluations and checkpoints within a block are a part of its seconds.

    Args:
        process: a started trial.
        plan: what it trains with.
        clock: of the judging process.
        began: on that clock, when its start was asked for.
        watch: what is seen goes there.
        limits: of the arm, see ``TrialArm``.
    """

    own_ramp = False

    def __init__(
        self,
        process: TrialProcess,
        plan: Plan,
        *,
        clock: Clock,
        began: float,
        watch: SideSeconds | None = None,
        **limits: Any,
    ) -> None:
        super().__init__(process, plan, **limits)
        self._clock, self._began = clock, began
        self.watch = watch or SideSeconds()

    def warm_up(self, max_seconds: float) -> Startup:
        startup = super().warm_up(max_seconds)
        self._step_seconds = self._one_step()
        spent = self._clock() - self._began - (startup.warmup_steps + _ASKED) * self._step_seconds
        self.watch.starts.append(max(spent, 0.0))
        return startup.model_copy(update={"fixed_seconds": self.watch.starts[-1]})

    def _one_step(self) -> float:
        """The quickest of some: what a step takes where nothing disturbs it."""
        seconds = []
        for _ in range(_ASKED):
            began = self._clock()
            super().block(0.0, 1, 0.0)
            seconds.append(self._clock() - began)
        return min(seconds)

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        if ramp_seconds or cycle > 1:
            super().block(ramp_seconds, cycle, 0.0, cycle)
        began = self._clock()
        block = super().block(seconds, min_steps, 0.0, cycle)
        spent = self._clock() - began
        self.watch.samples = added(self.watch.samples, block.samples)
        self.watch.steps += block.steps
        self.watch.seconds += spent
        return block.model_copy(update={"seconds": spent, "late_seconds": 0.0})


class WatchedScriptArm(ScriptArm, WatchedArm):
    """The same of a script, which is run again from its start where it has come to its end; that is in no block."""

    def _again(self) -> None:
        self._began = self._clock()
        super()._again()
