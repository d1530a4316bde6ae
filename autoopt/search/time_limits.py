"""Limits of time for the stages of a trial: they follow what the baseline took, what is left, and what can be saved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from autoopt.records.messages import Startup

START_SECONDS = 300.0
"""Importing, building and setting up a workload may take this long before it counts as hung."""
FACTOR = 10.0
FEWEST_SECONDS = 15.0
"""Once the baseline was started, a stage of another start may take so many times the seconds that it took there, and
at least so many: a slow disk or a fresh interpreter is not a hang."""
SHARE = 1 / 3
"""Of the time that is left, for one trial's start."""
LEAST_SHARE_SECONDS = 10.0
"""And no less than this."""
PATIENCE = 2.0
"""Times the seconds that a strategy says its start takes once: such figures are off by that."""
STEADY_SECONDS = 20.0
"""A look waits no longer than this for steady steps, compilation apart."""


@dataclass(frozen=True)
class TimeLimits:
    """Seconds that a stage of a trial's start may take before it counts as hung.

    Args:
        start: importing and building the workload.
        ready: setting it up.
        warm_up: training until steps are steady, compilation included; a multiple of what was asked for where None.
        share: the most of each, whatever a strategy says that its start takes once.
    """

    start: float = START_SECONDS
    ready: float = START_SECONDS
    warm_up: float | None = None
    share: float = inf

    @classmethod
    def following(cls, startup: Startup) -> TimeLimits:
        """Limits for other plans where the baseline took this: :data:`FACTOR` times as long."""
        return cls(
            start=max(FACTOR * startup.build_seconds, FEWEST_SECONDS),
            ready=max(FACTOR * startup.setup_seconds, FEWEST_SECONDS),
        )

    def for_look(self, saved: float | None, seconds_left: float) -> TimeLimits:
        """Limits for a look at a candidate: no more than its share of what is left, nor than it could ever save.

        Args:
            saved: seconds that a planned run saves at the very best, which it may cost once; None where not known.
            seconds_left: for the search.
        """
        share = max(SHARE * seconds_left, LEAST_SHARE_SECONDS)
        warm_up = share if saved is None else min(share, max(saved, FEWEST_SECONDS))
        return replace(self, start=min(self.start, share), ready=min(self.ready, share), warm_up=warm_up, share=share)

    def paying(self, once: float) -> TimeLimits:
        """Limits of a start that takes so many seconds once, by the word of its strategies."""
        needed = PATIENCE * once
        start, ready = (max(seconds, min(seconds + needed, self.share)) for seconds in (self.start, self.ready))
        return replace(self, start=start, ready=ready)
