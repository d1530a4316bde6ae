"""A candidate that was screened: its gain, how far that may err, its verdict, and what its confirmation would take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot, log1p, sqrt

from autoopt.records import Noise, Trial
from autoopt.search.candidate import Candidate
from autoopt.search.compare.sequential_test import between_process_of, unseen_mode
from autoopt.search.compare.statistics import known_radius
from autoopt.strategy import Strategy

INPUT = frozenset({"storage", "preparation", "collate"})
"""Stages that deliver batches one after the other: ways to shorten them are rivals, of which the best is taken."""
PLAIN = 2.0
"""Standard errors by which a gain stands out: of many changes that bring nothing, hardly one does so by chance."""


@dataclass(frozen=True)
class Screened:
    """A candidate that was screened.

    Args:
        gain: log of the speedup that was seen, of the time to the target where that is known, fixed cost included.
        error: standard error of the gain, how processes of one program differ included.
    """

    candidate: Candidate
    trial: Trial
    gain: float
    error: float = 0.0

    @property
    def plain(self) -> bool:
        """Whether the gain stands out of its own noise."""
        return self.gain > PLAIN * self.error

    def rivals(self, other: Screened) -> bool:
        """Whether only one of both is of use: settings of one strategy, or ways to deliver batches faster."""
        return rival_strategies(self.candidate.strategy, other.candidate.strategy)


def alone_or_together(found: Iterable[Screened]) -> list[Screened]:
    """The largest gains of which no two are rivals, the best first."""
    taken: list[Screened] = []
    for one in sorted(found, key=lambda screened: -screened.gain):
        if not any(one.rivals(other) for other in taken):
            taken.append(one)
    return taken


def rival_strategies(one: Strategy, other: Strategy) -> bool:
    """Whether they are one, or both are ways to deliver batches faster."""
    return one is other or bool(INPUT & frozenset(one.stages) and INPUT & frozenset(other.stages))


FEWEST_PAIRS, MOST_PAIRS = 2, 200
BLOCK_ERROR = 0.02
"""Standard error (log) of a pair of processes from its blocks, where it is not known."""
HOPE = 1.5
"""A gain may well be so many standard errors larger than its looks showed."""
ALPHA = 0.05


def pairs_to_confirm(gain: float, noise: Noise, min_gain: float) -> int:
    """Pairs of processes that confirm a log gain: by their interval, and by the chance of a slow mode unseen.

    Args:
        gain: log speedup.
        noise: with the variance between processes.
        min_gain: the gain worth having (0.01: one per cent).
    """
    between = between_process_of(noise).sd
    for pairs in range(FEWEST_PAIRS, MOST_PAIRS):
        radius = known_radius(hypot(between, BLOCK_ERROR) / sqrt(pairs), ALPHA)
        if max(radius, unseen_mode(pairs, between, ALPHA)) < gain - log1p(min_gain):
            return pairs
    return MOST_PAIRS
