"""The budget's allocation: most of it to the search, as little as possible to what comes before and after.

The baseline's training is short where no target value is given. What verification and ablation need is estimated from
what was measured, and kept back once there is something to verify. Nothing is started that cannot finish before its
deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from autoopt.records.messages import Startup
from autoopt.search.accept.evidence import FEWEST_SEEDS
from autoopt.search.compare.arm import READY_SECONDS

BASELINE_TO_TARGET = 0.15
BASELINE_ALONE = 0.08
"""Shares for the baseline's training: to a target that is given, and where its own metric becomes the target."""

NOISE = 0.05
NOISE_SECONDS = 10.0
NOISE_AT_MOST = 0.25
"""Short runs: fewer seconds than this do not hold the pairs of processes that an A/A control needs."""

MOST_CONTROL_PAIRS = 4
"""Of processes that an A/A control has; comparisons bring their own."""

KEPT_BACK_AT_MOST = 0.45
"""Share of the budget for the end of the run at most."""

PROBE_SECONDS, PROBE_STEPS = 8.0, 24
"""Of a probe of quality, about, its start apart: two follow the first training. Slow steps: so many of them."""

PAST = 0.25
"""Share of the steps to the target that a verification trains on beyond it."""


@dataclass(frozen=True)
class BudgetAllocation:
    """Deadlines of one run on its own clock, in seconds; what was measured of the baseline is 0 before that.

    Args:
        start_seconds: what it costs to start a trial and warm it up.
        baseline_seconds: one training of the baseline to the target.
        pair_seconds: a pair of processes of it with few blocks.
        trained: the baseline had its first training; False where that waits for a plan to be trained next to it.
    """

    budget: float
    start_seconds: float = 5.0
    baseline_seconds: float = 0.0
    pair_seconds: float = 0.0
    trained: bool = True
    step_seconds: float = 0.0

    def baseline(self, target_given: bool) -> float:
        """Seconds for the baseline's training at most."""
        return self.budget * (BASELINE_TO_TARGET if target_given else BASELINE_ALONE)

    @property
    def noise(self) -> float:
        """Seconds for the A/A control."""
        return min(max(self.budget * NOISE, NOISE_SECONDS), self.budget * NOISE_AT_MOST)

    @property
    def longest_run(self) -> float:
        """Seconds of the longest whole run of which a budget holds pairs."""
        return KEPT_BACK_AT_MOST * self.budget / 2

    def verification(self, seeds: int = 2, speedup: float = 1.0) -> float:
        """Seconds to train baseline and final plan to the target from that many seeds.

        For one seed the plan is trained alone, next to the training of the baseline that is at hand already;
        alternately, from fresh seeds, where there is time for it.
        """
        training = self.baseline_seconds * (1 + PAST if seeds > 1 else 1) + self.start_seconds
        return (seeds - self.trained) * training + seeds * training / speedup

    def trained_pair(self, speedup: float = 1.0) -> float:
        """Seconds to train baseline and final plan to the target alternately, from one fresh seed."""
        return (self.baseline_seconds + self.start_seconds) * (1 + 1 / max(speedup, 1.0))

    @property
    def pair(self) -> float:
        """Seconds that a pair of processes takes, with their blocks."""
        return self.pair_seconds or 2 * self.start_seconds + 4.0

    @property
    def comparison(self) -> float:
        """Seconds that a short comparison takes: two pairs of processes."""
        return 2 * self.pair

    @property
    def probe(self) -> float:
        """Seconds of a probe of quality, its start apart."""
        return max(PROBE_SECONDS, PROBE_STEPS * self.step_seconds)

    @property
    def screening(self) -> float:
        """Seconds to screen one candidate: its start and its blocks against an incumbent that is alive."""
        return max(self.pair - self.start_seconds, self.start_seconds)

    def kept_back(self, changes: int, speedup: float = 1.0) -> float:
        """Seconds reserved for the end of the run: nothing before a change was kept."""
        return min(self.end(changes, speedup), KEPT_BACK_AT_MOST * self.budget) if changes else 0.0

    def end(self, changes: int, speedup: float = 1.0) -> float:
        """Seconds in which the final plan is trained from one seed, compared once more, and each of several changes is
        left out once; further seeds, and each change alone, take what else is left."""
        return self.verification(1, speedup) + (1 + changes if changes > 1 else 1) * self.comparison

    def last_deadline(self, speedup: float = 1.0) -> float:
        """When promising candidates must be decided: then the final plan is compared, and trained from two seeds, which
        are an interval, and come before a finer plan."""
        needed = FEWEST_SEEDS * self.trained_pair(speedup) + self.comparison
        return self.budget - min(needed, KEPT_BACK_AT_MOST * self.budget)

    def search_deadline(self, changes: int, speedup: float = 1.0) -> float:
        """When the search ends, on the run's clock."""
        return self.budget - self.kept_back(changes, speedup)

    @property
    def trial(self) -> float:
        """Seconds that one comparison may take at most: long runs allow more pairs of processes."""
        return min(max(0.12 * self.budget, 1.5 * self.comparison), 900.0)


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
"""A measurement waits no longer than this for steady steps, compilation apart."""


@dataclass(frozen=True)
class TimeLimits:
    """Seconds that a stage of a trial's start may take before it counts as hung.

    Args:
        start: importing and building the workload; ``ready``: setting it up.
        warm_up: until steps are steady, compilation included; a multiple of what was asked for where None.
        share: the most of each, whatever a strategy says that its start takes once.
    """

    start: float = READY_SECONDS
    ready: float = READY_SECONDS
    warm_up: float | None = None
    share: float = inf

    @classmethod
    def following(cls, startup: Startup) -> TimeLimits:
        """Limits for other plans where the baseline took this: :data:`FACTOR` times as long."""
        return cls(
            start=max(FACTOR * startup.build_seconds, FEWEST_SECONDS),
            ready=max(FACTOR * startup.setup_seconds, FEWEST_SECONDS),
        )

    def for_screening(self, saved: float | None, seconds_left: float) -> TimeLimits:
        """Limits for the screening of a candidate: no more than its share of what is left, nor than it could ever save
        (``saved``: in a planned run at the very best; None where not known)."""
        share = max(SHARE * seconds_left, LEAST_SHARE_SECONDS)
        warm_up = share if saved is None else min(share, max(saved, FEWEST_SECONDS))
        return replace(self, start=min(self.start, share), ready=min(self.ready, share), warm_up=warm_up, share=share)

    def paying(self, once: float) -> TimeLimits:
        """Limits of a start that takes so many seconds once, by the word of its strategies."""
        needed = PATIENCE * once
        start, ready = (max(seconds, min(seconds + needed, self.share)) for seconds in (self.start, self.ready))
        return replace(self, start=start, ready=ready)
