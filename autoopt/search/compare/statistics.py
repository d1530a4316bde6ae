"""Estimates from two-level data: noisy blocks inside a pair of processes, and processes that differ.

The speed of a plan is total work over total seconds: what happens rarely in its steps (a stall, a recompilation, a wait
for one batch in eight) belongs to the time that the user pays, so nothing that the plan itself does is trimmed. The
error comes from the scatter between rounds (batch means; Law and Carson, "A sequential procedure for determining the
length of a steady-state simulation", Operations Research 27, 1979). Rounds in which other programs used more of the
processor than usual are left out, by their CPU seconds alone.

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
from math import log
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from scipy.stats import t as student

from autoopt.records.account import Row
from autoopt.search.compare.comparison import PairOfProcesses, total

Array = NDArray[np.float64]

Paired = tuple[Row, Row]
"""Blocks of incumbent and candidate from one round."""

DISTURBED = 0.15
"""CPU seconds of other programs per block second, beyond what is usual, from which a block counts as disturbed."""
_MOST_DISCARDED = 0.25
"""Share of rounds that other programs may disturb: load that is there all the time belongs to the conditions."""
_EXPECTED_DOF = 8
"""Weight of the scatter seen in earlier pairs of processes, in rounds: an A/A control of four pairs has seen twenty or
more, and the load of a machine changes."""

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


def work_of(paired: Sequence[Paired]) -> list[tuple[Array, Array]]:
    """Work and seconds of each block, incumbent's and candidate's: samples, or steps where one side cannot count them.

    Raises:
        ValueError: a row holds no work or no time.
    """
    by_steps = not all(row.samples for pair in paired for row in pair)
    sides = []
    for rows in zip(*paired, strict=True):
        work = [row.steps if by_steps else row.samples for row in rows]
        for row, done in zip(rows, work, strict=True):
            if not done or done <= 0 or row.seconds <= 0:
                raise ValueError(f"a block needs work and time, got {done} in {row.seconds} s")
        sides.append((np.asarray(work, dtype=np.float64), np.array([row.seconds for row in rows])))
    return sides


def ratio_of_totals(paired: Sequence[Paired], expected_sd: float | None = None) -> Level:
    """Log of the ratio of total work over total seconds, candidate over incumbent, with its standard error.

    The factor ``dof / (dof - 2)`` is the variance of Student's t, so that a normal model above this level is not misled
    by a standard error from few rounds, of which there are :data:`MIN_BLOCKS` at least. ``expected_sd``: scatter of a
    round's log ratio in earlier pairs of processes; it counts as much as eight rounds.
    """
    n = len(paired)
    if n < MIN_BLOCKS:
        raise ValueError(f"a standard error needs at least {MIN_BLOCKS} rounds, got {n}")
    logs, influence = [], []
    for work, seconds in work_of(paired):
        speed = work.sum() / seconds.sum()
        logs.append(log(speed))
        influence.append((work - speed * seconds) / (speed * seconds.mean()))
    variance = float(np.sum((influence[1] - influence[0]) ** 2)) / (n - 1)
    dof, pooled = n - 1, variance
    if expected_sd is not None:
        dof += _EXPECTED_DOF
        pooled = ((n - 1) * variance + _EXPECTED_DOF * expected_sd**2) / dof
    error = (pooled * dof / (dof - 2) / n) ** 0.5
    return Level(logs[1] - logs[0], error, n, variance**0.5)


def merged(rows: Sequence[Row]) -> Row:
    """Blocks of one plan from one round as one block."""
    summed = ("steps", "samples", "seconds", "foreign_cpu_seconds", "late_seconds")
    return rows[0].model_copy(update={name: total(getattr(row, name) for row in rows) for name in summed})


class Rounds:
    """Rounds of one pair of processes."""

    def __init__(self) -> None:
        self.paired: list[Paired] = []
        self._settled = 0

    def add(self, incumbent: Row, candidate: Row) -> None:
        self.paired.append((incumbent, candidate))
        if incumbent.late_seconds or candidate.late_seconds:
            self._settled = len(self.paired)

    @property
    def since(self) -> int:
        """The first round that counts: after one that compiled or searched again, where enough rounds follow."""
        return self._settled if len(self.paired) - self._settled >= MIN_BLOCKS else 0

    def counted(self) -> list[Paired]:
        """Rounds that other programs did not disturb."""
        later = self.paired[self.since :]
        keep = undisturbed([(one.foreign_share, other.foreign_share) for one, other in later])
        return [pair for pair, kept in zip(later, keep, strict=True) if kept]

    def level(self, expected_sd: float | None = None) -> Level | None:
        """The ratio with its error; None while there are too few rounds."""
        counted = self.counted()
        return ratio_of_totals(counted, expected_sd) if len(counted) >= MIN_BLOCKS else None

    def document(self, expected_sd: float | None, *, startup_seconds: float, seconds: float) -> PairOfProcesses | None:
        """The pair of processes that they were measured in; None where they are too few to count."""
        level, counted = self.level(expected_sd), self.counted()
        if level is None:
            return None
        return PairOfProcesses(
            log_ratio=level.value,
            standard_error=level.error,
            rounds=len(counted),
            block_sd=level.sd,
            disturbed=len(self.paired) - self.since - len(counted),
            startup_seconds=startup_seconds,
            seconds=seconds,
        )


def undisturbed(shares: Sequence[tuple[float | None, float | None]]) -> list[bool]:
    """Which rounds to keep, from the foreign CPU share of their two blocks alone; ratios are never read.

    A block is disturbed when it saw more than ``DISTURBED`` above what is usual for its own side. Where one side has n
    of them, the n rounds with the most foreign time go on either side: time that is taken from every busy core shows
    more in the side that keeps more cores busy, and leaving out its slow blocks alone would make it look faster. At
    most a quarter goes: load that is there all the time belongs to the conditions of the measurement.
    """
    most = int(_MOST_DISCARDED * len(shares))
    sides = []  # the rounds of each side above its usual share, by how much and where, most first
    for which in (0, 1):
        side = [pair[which] for pair in shares]
        usual = median([share for share in side if share is not None] or [0.0])
        over = [(usual - share, index) for index, share in enumerate(side) if share is not None and share > usual]
        sides.append(sorted(over))
    count = min(max(sum(-over > DISTURBED for over, _ in side) for side in sides), -(-most // 2))
    ranked = sorted((-over <= DISTURBED, over, index) for side in sides for over, index in side[:count])
    gone = list(dict.fromkeys(index for *_, index in ranked))[:most]
    return [index not in gone for index in range(len(shares))]


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
