"""Intervals of quantiles of latency.

A process is the unit: requests of one process share its memory layout and the machine's bursts, so that an interval
from requests alone is too narrow. Each fresh process gives one P95 (a median-unbiased quantile of all its requests,
asked in blocks that take turns with the other variants'); the interval is Student's, over processes, of its logarithm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scipy.stats import t

from autoopt.records import Estimate

CONFIDENCE = 0.9
FEWEST = 3
"""Processes below which no interval is given."""


def over_processes(values: Sequence[float]) -> Estimate | None:
    """The geometric mean of a positive quantity over processes, with its interval; None for fewer than three.

    Args:
        values: one of each process, such as its P95 in seconds, or a ratio of two that took turns.
    """
    n = len(values)
    if n < FEWEST:
        return None
    logs = [math.log(value) for value in values]
    mean = sum(logs) / n
    deviation = math.sqrt(sum((each - mean) ** 2 for each in logs) / (n - 1))
    room = float(t.ppf((1 + CONFIDENCE) / 2, n - 1)) * deviation / math.sqrt(n)
    low, value, high = (math.exp(each) for each in (mean - room, mean, mean + room))
    return Estimate(value=value, low=min(low, value), high=max(high, value), confidence=CONFIDENCE, n=n)
