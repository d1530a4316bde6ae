"""The incumbent's process that lives on, frozen, while candidates are looked at against it."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.search.compare.arm import Start
from autoopt.search.compare.comparison import Rule
from autoopt.search.compare.pairs import Clock, LiveArm


class LiveIncumbent:
    """Common part of looks at candidates: who starts processes, the incumbent's plan, and its process while it lives.

    Args:
        start: starts a process.
        incumbent: its plan.
        rule: block length, ramp, and the gain worth having.
        clock: seconds.
        rng: decides order.
        live: a process of the incumbent that is alive and frozen; started with the first look where None.
    """

    def __init__(
        self,
        start: Start,
        incumbent: Plan,
        rule: Rule,
        *,
        clock: Clock,
        rng: np.random.Generator,
        live: LiveArm | None = None,
    ) -> None:
        self._start, self._rule, self._clock, self._rng = start, rule, clock, rng
        self.incumbent = incumbent
        self._live = live

    def hand_over(self) -> LiveArm | None:
        """The incumbent's live process, which belongs to whoever asks from here on; None where there is none."""
        live, self._live = self._live, None
        return live

    def close(self) -> None:
        """Ends the incumbent's process."""
        live = self.hand_over()
        if live is not None:
            with suppress(TrialFailed):
                live.arm.thaw()  # a stopped process cannot tidy up
            live.arm.close()
