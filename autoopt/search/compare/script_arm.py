"""An arm whose script may come to its end: it is then run again from its start, and goes on being compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.script.endings import ENDED
from autoopt.search.compare.arm import TrialArm, TrialProcess

MOST_RUNS = 50
"""Runs of one script within one comparison; one that ends sooner than that is too short to be measured."""


class ScriptArm(TrialArm):
    """An arm that starts its process anew where the script has ended.

    Args:
        launch: starts the process.
        plan: what it trains with.
        limits: of the arm, see ``TrialArm``.
    """

    def __init__(self, launch: Callable[[], TrialProcess], plan: Plan, **limits: Any) -> None:
        super().__init__(launch(), plan, **limits)
        self._launch = launch
        self._runs = 1
        self._warmed_up_in = 0.0

    def warm_up(self, max_seconds: float) -> Startup:
        self._warmed_up_in = max_seconds
        return super().warm_up(max_seconds)

    def block(self, seconds: float, min_steps: int, ramp_seconds: float) -> Block:
        while True:
            try:
                return super().block(seconds, min_steps, ramp_seconds)
            except TrialFailed as failure:
                if failure.where != ENDED or self._runs >= MOST_RUNS:
                    raise
            self._again()

    def _again(self) -> None:
        self._runs += 1
        self._process.close()
        self._process = self._launch()
        super().warm_up(self._warmed_up_in)
