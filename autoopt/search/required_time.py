"""The time that a proof needs: pairs of processes until the interval of a gain that was seen clears the threshold."""

from __future__ import annotations

from math import log1p, sqrt
from statistics import fmean

from autoopt.records import Noise
from autoopt.search.compare.sequential_test import between_process_of
from autoopt.search.compare.statistics import known_radius
from autoopt.search.screening import Screened

FEWEST_PAIRS, MOST_PAIRS = 2, 200
BLOCK_ERROR = 0.02
"""Standard error (log) of a pair of processes from its blocks, where it is not known."""
HOPE = 1.5
"""A look is one pair of processes: the gain may well be so many standard errors larger than it showed."""
ALPHA = 0.05


def pairs_to_prove(gain: float, noise: Noise, min_gain: float, block_error: float = BLOCK_ERROR) -> int:
    """Pairs of processes that prove a log gain, if it is one standard error of a pair better than it looked.

    Args:
        gain: log speedup that was seen in a look.
        noise: with the variance between processes.
        min_gain: the gain worth having (0.01: one per cent).
        block_error: standard error of a pair from its blocks.
    """
    one = sqrt(between_process_of(noise).sd ** 2 + block_error**2)
    hoped = gain + HOPE * one
    for pairs in range(FEWEST_PAIRS, MOST_PAIRS):
        if known_radius(one / sqrt(pairs), ALPHA) < hoped - log1p(min_gain):
            return pairs
    return MOST_PAIRS


def seconds_to_prove(screened: Screened, noise: Noise, min_gain: float, start_seconds: float) -> float:
    """Seconds of those pairs: looks at it, each with a start of the incumbent besides.

    Args:
        start_seconds: of the incumbent.
    """
    errors = [pair.standard_error for look in screened.looks for pair in look.pairs]
    pair = start_seconds + fmean(look.seconds for look in screened.looks)
    return pairs_to_prove(screened.gain, noise, min_gain, fmean(errors) if errors else BLOCK_ERROR) * pair
