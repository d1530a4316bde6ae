"""Estimates from two-level data: noisy blocks inside a pair of processes, and processes that differ.

Two processes of the same program differ steadily by several per cent (memory layout, placement of
pages and threads), so blocks of one pair of processes say nothing about the next pair. The model:
pair *i* has the log speedup ``y_i ~ Normal(mu, tau^2 + v_i)``, where ``v_i`` is the square of the
standard error that its blocks leave and ``tau`` the between-process variance, unknown, with a scaled
inverse chi-square distribution that the A/A control and earlier comparisons sharpen.

Sources: Kalibera and Jones, "Rigorous benchmarking in reasonable time", ISMM 2013 (levels of repetition and their best
lengths); Robbins, Ann. Math. Stat. 41 (1970) (normal mixture, valid however often one reads it); Jennison and
Turnbull, JASA 92 (1997) (the weighted mean of a mixed model has independent increments in its information); Wang and
Ramdas, "Anytime-valid t-tests", Sequential Analysis 44 (2025) (mixing over an unknown variance keeps a likelihood ratio
a martingale).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from scipy.stats import t as student

Array = NDArray[np.float64]

MIN_BLOCKS = 6
"""Fewest rounds from which a standard error is taken."""

MIXTURE = ((0.1, 0.75), (0.5, 0.25))
"""Spreads, in log speedup, of the normal mixtures of the confidence sequence, each with its weight: effects of these
sizes are decided soonest. The interval is valid for any values. One spread alone is wasteful where the standard error
is larger than it: a factor of 1.8 seen in two pairs of processes after a short A/A control must not read [0.9, 3.5]."""

_NODES = 48
"""Values that the between-process variance may have: the mean over more of them is the same to a per cent."""
_MOST_DOF = 12.0
"""Worth of earlier comparisons, in pairs: another plan may have another variance."""


@dataclass(frozen=True)
class BetweenProcess:
    """Knowledge of the between-process variance: the log ratio of two processes of one program.

    Args:
        sd: its standard deviation, dimensionless (0.05: two processes differ by about 5 %).
        dof: how many independent pairs that figure is worth. The default is one: a first guess that
            four pairs of an A/A control overrule on a quiet machine as on a restless one.
        most: larger values of ``sd`` are not considered; processes of one program do not differ by more than a fifth.
    """

    sd: float = 0.04
    dof: float = 1.0
    most: float = 0.2

    def after(self, values: Sequence[float], errors: Sequence[float], around: float | None = None) -> BetweenProcess:
        """This knowledge with one more comparison: its pairs' log ratios and their standard errors.

        The spread of ``values`` beyond what ``errors`` explain is variance between processes. ``dof`` is bounded, since
        another plan (other threads, a compiled model) may have another. ``around``: the true log ratio where it is
        known, as in an A/A control, of which a single pair shows something.
        """
        free = len(values) - (around is None)
        if free < 1:
            return self
        spread = float(np.sum((np.asarray(values) - (np.mean(values) if around is None else around)) ** 2))
        between = spread - free * float(np.mean(np.square(errors)))
        # A comparison whose blocks are noisier than processes differ knows little of it: weigh it down.
        weight = free * min(1.0, self.sd**2 / (self.sd**2 + float(np.mean(np.square(errors)))) * 2.0)
        variance = (self.dof * self.sd**2 + max(between, 0.0) * weight / free) / (self.dof + weight)
        return BetweenProcess(sd=max(variance, 1e-6) ** 0.5, dof=min(_MOST_DOF, self.dof + weight))


@dataclass(frozen=True)
class Level:
    """A location with its standard error, from ``n`` values that scatter by ``sd`` each."""

    value: float
    error: float
    n: int
    sd: float


@lru_cache(maxsize=256)
def _taus(sd: float, dof: float, most: float) -> Any:
    """Equally likely values of tau squared: quantiles of the scaled inverse chi-square distribution."""
    levels = (np.arange(_NODES) + 0.5) / _NODES
    return np.minimum(dof * sd**2 / chi2.ppf(levels, dof), most**2)


class TwoLevel:
    """Joint estimate of a log speedup ``mu`` from pairs of processes and the standard error that blocks leave."""

    def __init__(self, values: Sequence[float], errors: Sequence[float], between: BetweenProcess) -> None:
        if not values:
            raise ValueError("an estimate needs at least one pair of processes")
        y = np.asarray(values, dtype=np.float64)
        v = np.maximum(np.square(np.asarray(errors, dtype=np.float64)), 1e-12)
        self._taus: Array = _taus(between.sd, between.dof, between.most)
        weights = 1.0 / (self._taus[:, None] + v[None, :])
        self._information: Array = weights.sum(axis=1)
        self._means: Array = (weights * y).sum(axis=1) / self._information
        residual = y[None, :] - self._means[:, None]
        self._fit: Array = 0.5 * np.log(weights).sum(axis=1) - 0.5 * (weights * residual**2).sum(axis=1)
        flat = self._fit - 0.5 * np.log(self._information)
        self._odds: Array = np.exp(flat - np.logaddexp.reduce(flat))
        self.n = len(y)

    @property
    def value(self) -> float:
        """The log speedup: pairs weighed by their error and tau, averaged over what tau may be."""
        return float(self._odds @ self._means)

    @property
    def error(self) -> float:
        """Standard error of :attr:`value`."""
        return float(np.sqrt(self._odds @ (1.0 / self._information)))

    @property
    def between_process_sd(self) -> float:
        """Root of the mean of tau squared after these pairs (dimensionless)."""
        return float(np.sqrt(self._odds @ self._taus))

    def sequence(self, alpha: float) -> tuple[float, float]:
        """Bounds of mu that hold at all times at once with probability ``1 - alpha``, screened after any block.

        The likelihood ratio of "mu is spread around m by the mixture" against "mu is m", each averaged
        over what the variance may be, is a martingale with mean 1 if mu is m; by Ville's inequality it
        reaches ``1 / alpha`` with probability at most ``alpha``. The interval holds every m for which it has not.
        """
        return self._solve(lambda m: self._evidence(m) + np.log(alpha))

    def above(self, m: float, alpha: float) -> bool:
        """Whether the lower bound of :meth:`sequence` clears ``m`` (the same, without searching for the bound)."""
        return self.value > m and bool(self._evidence(np.array([m]))[0] > -np.log(alpha))

    def below(self, m: float, alpha: float) -> bool:
        """Whether the upper bound of :meth:`sequence` falls below ``m``."""
        return self.value < m and bool(self._evidence(np.array([m]))[0] > -np.log(alpha))

    def surely_above(self, m: float, alpha: float) -> bool:
        """Whether mu is above ``m``, where that is the one question: wrong with probability at most ``alpha``.

        The mixture lies wholly above ``m``, so that it spends nothing on what nobody asks. Its likelihood ratio has a
        mean of at most 1 wherever mu is below ``m``, whenever one reads it.
        """
        return self.value > m and bool(self._evidence(np.array([m]), upward=True)[0] > -np.log(alpha))

    def e_value(self, m: float) -> float:
        """Evidence that mu is above ``m``: at ``1 / alpha`` the lower bound of :meth:`sequence` clears it.

        If mu is ``m`` its mean is 1 whenever one reads it. Below ``m`` there is none to tell: at most 1.
        """
        found = float(np.exp(min(self._evidence(np.array([m]))[0], 200.0)))
        return found if self.value > m else min(found, 1.0)

    def _evidence(self, m: Array, upward: bool = False) -> Array:
        """Log likelihood ratio of the mixture around each ``m``, or its upper half, against ``m``; shape as ``m``."""
        square = self._information * (m[:, None] - self._means) ** 2
        against = []
        for sd, weight in MIXTURE:
            grown = 1.0 + sd**2 * self._information
            terms = self._fit - 0.5 * np.log(grown) - 0.5 * square / grown
            if upward:  # the share of the mixture, after these pairs, that lies above m
                score = np.sign(self._means - m[:, None]) * np.sqrt(square * (1.0 - 1.0 / grown))
                terms = terms + np.log(2.0) + norm.logcdf(score)
            against.append(np.log(weight) + np.logaddexp.reduce(terms, axis=-1))
        return np.asarray(np.logaddexp.reduce(against) - np.logaddexp.reduce(self._fit - 0.5 * square, axis=-1))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Bounds of mu for a number of pairs fixed beforehand (the A/A control): posterior quantiles."""
        tail = np.log((1 - confidence) / 2)

        def beyond(m: Array) -> Array:
            z = np.abs(m[:, None] - self._means) * np.sqrt(self._information)
            return np.asarray(tail - np.log(np.maximum(norm.sf(z) @ self._odds, 1e-300)))

        return self._solve(beyond)

    def _solve(self, excess: Callable[[Array], Array]) -> tuple[float, float]:
        """Where ``excess`` turns positive below and above the value."""

        def bound(sign: float) -> float:
            def over(distance: float) -> float:
                return float(excess(np.array([self.value + sign * distance]))[0])

            inside, outside = 0.0, 3.0 * self.error
            while over(outside) <= 0 and outside < 50.0:
                inside, outside = outside, outside * 1.7
            return self.value + sign * (float(brentq(over, inside, outside)) if over(outside) > 0 else outside)

        return bound(-1.0), bound(1.0)


@lru_cache
def student_reach(dof: float) -> float:
    """Half-width of a 95 % interval in standard errors that were estimated with so many degrees of freedom."""
    return float(student.ppf(0.975, dof))


def known_radius(error: float, alpha: float) -> float:
    """Half-width of :meth:`TwoLevel.sequence` where all variances are known (Robbins' normal mixture), at most: the
    narrower of the two that either spread of :data:`MIXTURE` would give alone with its share of ``alpha``. ``error``
    is of the log speedup."""
    radii = []
    for sd, weight in MIXTURE:
        ratio = (sd / error) ** 2
        radii.append(error * np.sqrt((1 + 1 / ratio) * (-2 * np.log(alpha * weight) + np.log1p(ratio))))
    return float(min(radii))


def wider(radius: float, count: int) -> float:
    """Half-width (log) of one of ``count`` intervals that hold together, by that of one with 95 % (Bonferroni)."""
    if radius <= 0 or count <= 1:
        return radius
    error = brentq(lambda error: known_radius(error, 0.05) - radius, radius / 50, radius)
    return known_radius(float(error), 0.05 / count)
