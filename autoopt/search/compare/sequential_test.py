"""When pairs of processes are enough: accept, reject, harmful, futile, or on with the next.

A run has one error budget: the chance that anything is kept that does nothing, over all of its candidates. Each
comparison carries an e-value, the likelihood ratio of its sequential test; testing it against ``alpha_t`` is asking it
to exceed ``1 / alpha_t``. Levels follow e-LOND (Xu and Ramdas, "Online multiple testing with e-values", AISTATS 2024),
the online form of e-BH: the share of false ones among what is kept stays below ``ALPHA`` in expectation, whatever the
dependence, and so does the chance of keeping any where nothing works.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, log1p, sqrt

from scipy.stats import norm

from autoopt.records import Estimate, Noise
from autoopt.search.compare.comparison import Decision, PairOfProcesses, Rule
from autoopt.search.compare.statistics import MIN_BLOCKS, BetweenProcess, Level, TwoLevel, known_radius

ALPHA = Rule().alpha
"""The chance of an error in the whole run."""

_MOST_BLOCKS = 40
"""Of a pair of processes, however noisy they are: a fresh pair shows more then than further blocks."""

PLAN_DOF = 2.0
"""Worth of what other plans showed of the variance between processes, in pairs of processes of this plan: plans differ
in it, so that its prior has a heavy tail. With 12, a placebo of 9 % after quiet plans of 2 % was kept in 22 % of runs,
with 2 in 4 %; a gain of a tenth takes six pairs in place of five."""

MODES = 5.0
"""Standard deviations between processes by which a slow mode may lie off the others, up to the most considered: with
the usual 4 %, one process in five that is 20 % slower was accepted in a third of placebos."""

_HOPELESS = 0.05
"""Chance of a decision below which no further pair is measured."""


def alpha_of(tested: int, kept: int) -> float:
    """The level at which the next candidate is kept, after so many that were put to confirmation and kept."""
    number = tested + 1
    return ALPHA * (kept + 1) / (number * (number + 1))


def between_process_of(noise: Noise | None) -> BetweenProcess:
    """Knowledge from the A/A control, and comparisons after it, of the between-process variance."""
    if noise is None or noise.process_sd is None or noise.process_dof is None:
        return BetweenProcess()
    return BetweenProcess(noise.process_sd, noise.process_dof)


def as_estimate(level: TwoLevel | Level, bounds: tuple[float, float], confidence: float) -> Estimate:
    """The estimate as a speedup, from log speedups."""
    low, high = bounds
    return Estimate(value=exp(level.value), low=exp(low), high=exp(high), confidence=confidence, n=level.n)


def scatter(known: float | None, pairs: Sequence[PairOfProcesses]) -> float | None:
    """Scatter of block pairs, with some more; what was known counts as two of them: the load of a machine changes."""
    squares = [known**2] * 2 if known is not None else []
    squares += [pair.block_sd**2 for pair in pairs if pair.block_sd is not None]
    return sqrt(sum(squares) / len(squares)) if squares else None


def unseen_mode(pairs: int, process_sd: float, alpha: float) -> float:
    """Log speedup that a rare slow mode of a candidate's processes may cost, which none of so many has shown.

    A share q of slow processes goes unseen in n of them with probability ``(1 - q)^n``. Taken is the largest that this
    does not exclude (``alpha`` is of two sides), each slower by the most that processes of one program differ.
    """
    share = 1.0 - (alpha / 2) ** (1 / pairs)
    slower = min(BetweenProcess.most, MODES * process_sd)
    return -log1p(share * expm1(-slower))


class SequentialTest:
    """The pairs of a comparison so far, those that were measured before included, and what follows from them."""

    def __init__(self, rule: Rule, noise: Noise | None = None, pairs: Sequence[PairOfProcesses] = ()) -> None:
        self.rule = rule
        self.pairs = list(pairs)
        known = between_process_of(noise)
        self._sd = known.sd
        self._between = BetweenProcess(known.sd, min(known.dof, PLAN_DOF))
        self._block_sd = noise.block_sd if noise else None

    def add(self, pair: PairOfProcesses) -> None:
        self.pairs.append(pair)

    @property
    def expected_sd(self) -> float | None:
        """How much one block pair scatters, from earlier pairs of processes; None before there was one."""
        return scatter(self._block_sd, self.pairs)

    def widen(self) -> None:
        """Sides that never run at the same time also feel the drift of the machine: more variance to expect."""
        self._between = BetweenProcess(self._between.sd * 1.5, min(self._between.dof, 3.0))

    def _level(self, current: Level | None = None, times: int = 1) -> TwoLevel | None:
        values = [pair.log_ratio for pair in self.pairs] + ([current.value] * times if current else [])
        errors = [pair.standard_error for pair in self.pairs] + ([current.error] * times if current else [])
        return TwoLevel(values, errors, self._between) if values else None

    @property
    def between_process_sd(self) -> float | None:
        level = self._level()
        return level.between_process_sd if level else None

    def estimate(self, current: Level | None = None) -> Estimate | None:
        """The speedup with bounds that hold at all times; None before the first pair has enough blocks."""
        level = self._level(current)
        if level is None:
            return None
        return as_estimate(level, level.sequence(self.rule.alpha), 1 - self.rule.alpha)

    def e_value(self) -> float | None:
        """Evidence that the speedup is above the gain worth having; None before the first pair has enough blocks."""
        level = self._level()
        return level.e_value(log1p(self.rule.min_gain)) if level is not None else None

    def promising(self) -> bool:
        """Whether, as it stands, the candidate is more likely worth keeping than not."""
        level = self._level()
        return level is not None and exp(level.value) > 1 + self.rule.min_gain

    def _confirmed(self, level: TwoLevel) -> Decision | None:
        """The decision that the confidence sequence has settled, if anything.

        Accepted is where the interval that is reported clears the gain worth having, and the run's error budget and a
        slow mode that was not seen allow it.
        """
        rule, least = self.rule, log1p(self.rule.min_gain)
        if (
            level.n >= rule.min_pairs
            and level.above(least, rule.alpha)
            and (rule.alpha_accept is None or level.surely_above(least, rule.alpha_accept))
            and level.value - unseen_mode(level.n, self._sd, rule.alpha) > least
        ):
            return Decision.ACCEPT
        if level.below(min(0.0, least), rule.alpha):
            return Decision.HARMFUL
        return Decision.REJECT if level.below(least, rule.alpha_reject) else None

    def decide(self, seconds_left: float) -> tuple[Decision, str] | None:
        """The decision with its reason after finished pairs, or None: another pair is worth it."""
        level = self._level()
        if level is None:
            return (Decision.INCONCLUSIVE, "no time for a single comparison") if seconds_left <= 0 else None
        decision = self._confirmed(level)
        if decision and self.rule.until_error is None:
            return decision, self._reason(decision)
        ended = self._ended(level, seconds_left)
        if ended is None:
            return None
        decision = decision or Decision.INCONCLUSIVE
        return decision, self._reason(decision) if decision != Decision.INCONCLUSIVE else ended

    def _ended(self, level: TwoLevel, seconds_left: float) -> str | None:
        """Why no further pair is measured, or None."""
        rule, pairs = self.rule, len(self.pairs)
        if rule.until_error is not None and pairs >= rule.min_pairs:
            low, high = level.sequence(rule.alpha)
            if (high - low) / 2 <= rule.until_error:
                return f"the interval is as narrow as asked for after {pairs} pairs of processes"
        cost = sum(pair.seconds for pair in self.pairs) / pairs
        possible = int(min(rule.max_pairs, pairs + max(seconds_left, 0.0) / max(cost, 1e-9)))
        if possible <= pairs:
            limit = f"{rule.max_pairs} pairs of processes" if pairs >= rule.max_pairs else "the time for it"
            return f"not decided within {limit}"
        if rule.until_error is not None or pairs < 3:
            return None
        # by where the value will be at the end (flat prior), and how wide its bounds will then be if processes differ
        # as it seems
        share, least = level.n / possible, log1p(rule.min_gain)
        error, spread = level.error * sqrt(share), level.error * sqrt(1 - share)
        one_sided = rule.alpha if rule.alpha_accept is None else min(rule.alpha, 2 * rule.alpha_accept)
        accept = norm.sf((least + known_radius(error, one_sided) - level.value) / spread)
        reject = norm.cdf((least - known_radius(error, rule.alpha_reject) - level.value) / spread)
        hopeless = float(accept + reject) < _HOPELESS
        return f"cannot be decided in the time left, which allows {possible} pairs of processes" if hopeless else None

    def enough(self, current: Level | None, startup_seconds: float, block_pair_seconds: float) -> bool:
        """Whether the current pair of processes has been measured enough.

        It has when more of its blocks would serve less than a fresh pair, by the number that gives the smallest error
        for the time spent (Kalibera and Jones); when what it shows decides already, or when a second pair just like it
        would. ``startup_seconds``: what a new pair costs before its first block.
        """
        if current is None or current.n < MIN_BLOCKS:
            return False
        if current.n >= _MOST_BLOCKS:
            return True
        level = self._level(current)
        assert level is not None
        between = max(level.between_process_sd, 1e-4)
        variance = current.n * current.error**2  # of one block pair's log ratio
        if current.n >= sqrt(variance * startup_seconds / (between**2 * max(block_pair_seconds, 1e-6))):
            return True
        if self.rule.until_error is not None:
            return False
        if self._confirmed(level) is not None:
            return True
        twice = self._level(current, times=2)
        return twice is not None and self._confirmed(twice) is not None

    def _reason(self, decision: Decision) -> str:
        estimate = self.estimate()
        assert estimate is not None
        seen = f"{estimate.text('.3f')} in {estimate.n} pairs of processes"
        words = {Decision.ACCEPT: "faster", Decision.HARMFUL: "slower"}
        return f"{words.get(decision, f'no gain of {self.rule.min_gain:.1%}')}: {seen}"
