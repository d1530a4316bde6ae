"""An arm whose script may come to its end: it is then run again from its start, and goes on being compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.script.refusals import ENDED
from autoopt.search.compare.arm import TrialArm, TrialProcess

MOST_RUNS = 50
"""Runs of one script within one comparison; one that ends sooner than that is too short to be measured."""


_LONG_ENOUGH = 0.1
"""Seconds of warming up below which a script that ends in the meantime is too short to be measured."""


class ScriptArm(TrialArm):
    """An arm that starts its process anew where the script has ended.

    Args:
        launch: starts the process.
        plan: what it trains with.
        timer: seconds, monotonic; it decides on nothing but how long a further run is warmed up.
        limits: of the arm, see ``TrialArm``.
    """

    def __init__(
        self,
        launch: Callable[[], TrialProcess],
        plan: Plan,
        *,
        timer: Callable[[], float] = time.monotonic,
        **limits: Any,
    ) -> None:
        super().__init__(launch(), plan, **limits)
        self._launch, self._timer = launch, timer
        self._runs = 1
        self._warmed_up_in = 0.0

    def warm_up(self, max_seconds: float) -> Startup:
        """Warms up; where the script is over before, half as long as it lasted, so that steps are left to measure."""
        self._warmed_up_in = max_seconds
        while True:
            began = self._timer()
            try:
                return super().warm_up(self._warmed_up_in)
            except TrialFailed as failure:
                if not self._may_run_again(failure) or self._warmed_up_in < _LONG_ENOUGH:
                    raise
            self._warmed_up_in = min(self._warmed_up_in, self._timer() - began) / 2
            self._again()

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        return self._unended(lambda: super(ScriptArm, self).block(seconds, min_steps, ramp_seconds, cycle))

    def switched_block(self, plan: Plan, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        return self._unended(
            lambda: super(ScriptArm, self).switched_block(plan, seconds, min_steps, ramp_seconds, cycle)
        )

    def _unended(self, block: Callable[[], Block]) -> Block:
        """A block of one run of the script: where the script ends within it, of the next."""
        while True:
            try:
                return block()
            except TrialFailed as failure:
                if not self._may_run_again(failure):
                    raise
            self._again()
            self.warm_up(self._warmed_up_in)

    def _may_run_again(self, failure: TrialFailed) -> bool:
        return failure.where == ENDED and self._runs < MOST_RUNS

    def _again(self) -> None:
        self._runs += 1
        self._process.close()
        self._process = self._launch()
        self._settled.clear()
