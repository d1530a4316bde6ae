"""A candidate that was looked at: the gain that was seen, how far that may err, and who its rivals are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, log
from statistics import fmean

from scipy.stats import t as student

from autoopt.records import Estimate, Trial
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

LARGE = 1.3
"""A speedup that is plain after seconds."""


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


def outstanding(found: Sequence[Screened], waiting: Iterable[Estimate | None]) -> Screened | None:
    """The one whose gain is for certain large, and larger than all that the rest may bring together; None without one.

    It is proved at once: what is looked at then is looked at faster, and on the plan that it is meant for.

    Args:
        waiting: predictions of those that had no look yet; one without may bring anything.
    """
    best = max(found, key=lambda screened: screened.gain, default=None)
    if best is None:
        return None
    rest = sum(max(one.gain, 0.0) for one in found if one is not best and not best.rivals(one))
    rest += sum(_promised(predicted) for predicted in waiting)
    surely = best.gain - PLAIN * best.error
    return best if surely > max(log(LARGE), rest) else None


def _promised(predicted: Estimate | None) -> float:
    """Log speedup: of a prediction, or its bound; without one it may be anything."""
    return inf if predicted is None else max(log(predicted.value), 0.0)


def rival_strategies(one: Strategy, other: Strategy) -> bool:
    """Whether they are one, or both are ways to deliver batches faster."""
    return one is other or bool(INPUT & frozenset(one.stages) and INPUT & frozenset(other.stages))
