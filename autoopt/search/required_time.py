"""The time that a proof needs: pairs of processes until the interval of a gain that was seen clears the threshold."""

from __future__ import annotations

from math import inf, log1p, sqrt
from statistics import fmean

from scipy.stats import norm

from autoopt.records import Noise
from autoopt.search.compare.sequential_test import between_process_of, unseen_mode
from autoopt.search.compare.statistics import known_radius
from autoopt.search.screened import Screened

FEWEST_PAIRS, MOST_PAIRS = 2, 200
BLOCK_ERROR = 0.02
"""Standard error (log) of a pair of processes from its blocks, where it is not known."""
HOPE = 1.5
"""A gain may well be so many standard errors larger than its looks showed."""
USUAL_SD = 0.1
"""How the log gains of changes scatter around none, about: what one look shows is half chance."""
ALPHA = 0.05


def pairs_to_prove(gain: float, noise: Noise, min_gain: float, block_error: float = BLOCK_ERROR) -> int:
    """Pairs of processes that prove a log gain.

    Args:
        gain: log speedup.
        noise: with the variance between processes.
        min_gain: the gain worth having (0.01: one per cent).
        block_error: standard error of a pair from its blocks.
    """
    one = _one(noise, block_error)
    for pairs in range(FEWEST_PAIRS, MOST_PAIRS):
        if _least(noise, one, pairs) < gain - log1p(min_gain):
            return pairs
    return MOST_PAIRS


def provable(seconds: float, pair_seconds: float, noise: Noise, min_gain: float) -> float:
    """The smallest log gain that can be proved in so many seconds; infinite where they hold too few pairs.

    Args:
        seconds: for the proof.
        pair_seconds: that a pair of processes takes.
        noise: with the variance between processes.
        min_gain: the gain worth having.
    """
    pairs = int(seconds / max(pair_seconds, 1e-9))
    if pairs < FEWEST_PAIRS:
        return inf
    return log1p(min_gain) + _least(noise, _one(noise, BLOCK_ERROR), pairs)


def _least(noise: Noise, one: float, pairs: int) -> float:
    """The log gain that so many pairs of processes tell from none: of their interval, and of a slow mode unseen."""
    radius = known_radius(one / sqrt(pairs), ALPHA)
    return max(radius, unseen_mode(pairs, between_process_of(noise).sd, ALPHA))


def chance(screened: Screened, least: float) -> float:
    """The chance that a candidate truly has a log gain of ``least``, by its looks and what changes bring usually."""
    variance = screened.error**2
    shrunk = USUAL_SD**2 / (USUAL_SD**2 + variance)
    return float(norm.sf((least - shrunk * screened.gain) / max(sqrt(shrunk * variance), 1e-9)))


def _one(noise: Noise, block_error: float) -> float:
    """Standard error of the log ratio of one pair of processes."""
    return sqrt(between_process_of(noise).sd ** 2 + block_error**2)


def seconds_to_prove(screened: Screened, noise: Noise, min_gain: float, start_seconds: float) -> float:
    """Seconds of those pairs, if it is somewhat better than it looked: looks at it, each with a start of the incumbent
    where that was alive before.

    Args:
        start_seconds: of the incumbent.
    """
    errors = [pair.standard_error for look in screened.looks for pair in look.pairs]
    block_error = fmean(errors) if errors else BLOCK_ERROR
    hoped = screened.gain + HOPE * min(_one(noise, block_error), screened.error or 1.0)
    starts = (look.saved_seconds + (0.0 if look.fresh else start_seconds) for look in screened.looks)
    pair = fmean(look.seconds for look in screened.looks) + fmean(starts)
    return pairs_to_prove(hoped, noise, min_gain, block_error) * pair
