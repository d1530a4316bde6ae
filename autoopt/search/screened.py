"""A candidate that was looked at: the gain that was seen, how far that may err, and who its rivals are."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from scipy.stats import t as student

from autoopt.records import Trial
from autoopt.search.candidate import Candidate
from autoopt.search.compare.comparison import Comparison
from autoopt.strategy import Strategy

INPUT = frozenset({"storage", "preparation", "collate"})
"""Stages that deliver batches one after the other: ways to shorten them are rivals, of which the best is taken."""
FIRM_ALPHA = 0.1
FIRM_DOF = 8
"""The chance that any of the candidates that bring nothing looks so good, and what the errors are worth in looks."""
PLAIN = 2.0
"""Standard errors by which a gain stands out: of many changes that bring nothing, hardly one does so by chance."""


@dataclass(frozen=True)
class Screened:
    """A candidate that was looked at.

    Args:
        gain: log of the speedup that was seen, of the time to the target where that is known, fixed cost included.
        looks: the pairs of processes that it was seen in.
        error: standard error of the gain, how processes of one program differ included.
    """

    candidate: Candidate
    trial: Trial
    gain: float
    looks: tuple[Comparison, ...]
    error: float = 0.0

    def bar(self, candidates: int) -> float:
        """Standard errors that tell a gain from chance, where so many candidates were looked at."""
        return float(student.isf(FIRM_ALPHA / max(candidates, 1), len(self.looks) + FIRM_DOF))

    @property
    def plain(self) -> bool:
        """Whether the gain stands out of its own noise."""
        return self.gain > PLAIN * self.error

    def rivals(self, other: Screened) -> bool:
        """Whether only one of both is of use: settings of one strategy, or ways to deliver batches faster."""
        return rival_strategies(self.candidate.strategy, other.candidate.strategy)

    def close_to(self, other: Screened) -> bool:
        """Whether it is a rival of which it is not known if it is better."""
        return self is not other and self.rivals(other) and abs(self.gain - other.gain) < self.error + other.error

    @property
    def seconds(self) -> float:
        """Seconds that a look at it takes, with a start of its own."""
        return fmean(look.seconds + look.saved_seconds for look in self.looks)


def rival_strategies(one: Strategy, other: Strategy) -> bool:
    """Whether they are one, or both are ways to deliver batches faster."""
    return one is other or bool(INPUT & frozenset(one.stages) and INPUT & frozenset(other.stages))
