"""Intervals of a P95: what a process is worth, and how often they hold."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from autoopt.latency.measuring import over_processes
from autoopt.latency.serving.load import quantile


def test_fewer_than_three_processes_give_no_interval() -> None:
    assert over_processes([0.01, 0.011]) is None


def test_the_interval_holds_as_often_as_it_says_where_processes_differ() -> None:
    """Lognormal requests, bursts of the machine, and a luck of each process: an interval from requests would fail."""
    rng, held, by_requests, runs = np.random.default_rng(3), 0, 0, 400
    truth = np.quantile(np.exp(0.25 * rng.standard_normal(400_000)), 0.95)
    for _ in range(runs):
        tails, pooled = [], []
        for luck in np.exp(0.04 * rng.standard_normal(4)):
            requests = luck * np.exp(0.25 * rng.standard_normal(120))
            tails.append(quantile(list(requests), 0.95))
            pooled += list(requests)
        found = over_processes(tails)
        assert found is not None
        held += found.low <= truth <= found.high
        low, high = (int(binom.ppf(tail, len(pooled), 0.95)) for tail in (0.05, 0.95))
        ordered = sorted(pooled)
        by_requests += ordered[low - 1] <= truth <= ordered[high]
    assert held / runs > 0.86
    assert by_requests < held


@pytest.mark.parametrize(("q", "wanted"), [(0.0, 1.0), (0.5, 3.0), (1.0, 5.0)])
def test_quantiles_of_five_numbers(q: float, wanted: float) -> None:
    assert quantile([5.0, 1.0, 4.0, 2.0, 3.0], q) == pytest.approx(wanted)
    assert quantile([7.0], q) == 7.0
