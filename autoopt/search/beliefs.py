"""Beliefs about each change: its prediction, and how far off comparisons have shown predictions of it to be."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, hypot, log, sqrt

import numpy as np
from scipy.stats import norm

from autoopt.records import Estimate, EstimateKind
from autoopt.records.base import Z

Member = tuple[str, Estimate | None]
"""A strategy's name, and what its prediction says next to the others of a plan; None where it says nothing."""

USUAL_SD = 0.1
"""How the log gains of changes scatter around their predictions, about; by half of itself, where one is larger."""
UNKNOWN_SD = 0.3
"""How those of which nothing is predicted scatter around none: some double the speed."""


def gain_where_it_is_one(mean: float, spread: float) -> float:
    """The log gain to be expected of what is taken only where it turns out to be a gain, of a normal distribution."""
    spread = max(spread, 1e-9)
    return spread * float(norm.pdf(mean / spread)) + mean * float(norm.cdf(mean / spread))


class Beliefs:
    """The errors of predictions as one normal distribution, in logs of speedups.

    A plan's log gain is the sum of what its changes are predicted to bring next to each other, and of the errors of
    these predictions. Each comparison of a plan shows the sum of the errors: it moves those of all its changes, the
    least certain most, and several plans distinguish between the changes that they do not share.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._mean, self._covariance = np.zeros(0), np.zeros((0, 0))
        self._seen = set[str]()

    def saw(
        self,
        members: Sequence[Member],
        gain: float,
        error: float,
        expected: float | None = None,
        shares: Sequence[float] | None = None,
    ) -> None:
        """A plan's log gain, with its standard error, over the same plan without these changes.

        Args:
            expected: of it by the predictions alone; their sum where None.
            shares: of each change's log gain in the plan's; all of it where None.
        """
        expected = sum(self.prior(*member)[0] for member in members) if expected is None else expected
        which = self._features(members, shares)
        moved = self._covariance @ which
        weights = moved / (which @ moved + max(error, 1e-6) ** 2)
        self._mean = self._mean + weights * (gain - expected - which @ self._mean)
        self._covariance = self._covariance - np.outer(weights, moved)
        self._seen.update(name for name, _ in members)

    def of(self, members: Sequence[Member]) -> tuple[float, float]:
        """Mean and standard error of the log gain of these changes together."""
        which = self._features(members)
        mean = sum(self.prior(*member)[0] for member in members) + which @ self._mean
        return float(mean), sqrt(max(float(which @ self._covariance @ which), 0.0))

    def believed(self, name: str, predicted: Estimate | None) -> Estimate | None:
        """The speedup of a change: its prediction, until something was seen of it; None where neither says anything."""
        if name not in self._seen:
            return None if predicted is None or predicted.kind is EstimateKind.BOUND else predicted
        mean, error = self.of([(name, predicted)])
        low, high = exp(mean - Z * error), exp(mean + Z * error)
        return Estimate(value=exp(mean), low=low, high=high, n=1, kind=EstimateKind.TRIED)

    def worth_of_seeing(self, member: Member, error: float, over: float = 0.0) -> float:
        """The log gain to be expected of a change that is taken only where a measurement with such an error speaks for
        it, over what it would replace (after the knowledge gradient: Frazier, Powell and Dayanik, SIAM J. Control
        Optim. 2008)."""
        mean, spread = self.of([member])
        return gain_where_it_is_one(mean - over, spread**2 / max(hypot(spread, error), 1e-9))

    def _features(self, members: Sequence[Member], shares: Sequence[float] | None = None) -> np.ndarray:
        for name, predicted in members:
            if name not in self._names:
                self._names.append(name)
                self._mean = np.append(self._mean, 0.0)
                grown = np.zeros((len(self._names),) * 2)
                grown[:-1, :-1] = self._covariance
                grown[-1, -1] = self.prior(name, predicted)[1] ** 2
                self._covariance = grown
        found = np.zeros(len(self._names))
        for (name, _), share in zip(members, shares or [1.0] * len(members), strict=True):
            found[self._names.index(name)] += share
        return found

    @staticmethod
    def prior(name: str, predicted: Estimate | None) -> tuple[float, float]:
        """Mean and spread of a log gain by its prediction alone; of a bound, that there is no more."""
        if predicted is None:
            return 0.0, UNKNOWN_SD
        if predicted.kind is EstimateKind.BOUND:
            return 0.0, min(UNKNOWN_SD, max(log(max(predicted.value, 1.0)), 1e-3))
        mean = log(predicted.value)
        return mean, max(abs(mean) / 2, USUAL_SD)
