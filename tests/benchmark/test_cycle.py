"""The cycle of a training: found in its step times, and in its loader's workers where training waits for them."""

from __future__ import annotations

import numpy as np
import pytest

from autoopt.benchmark.steady import LONGEST, cycle_of, period
from autoopt.testing.loaders import FakeLoader, LoaderModel


def bunched(workers: int, seconds: float, computing: float, jitter: float, steps: int) -> list[float]:
    rng = np.random.default_rng(workers)
    loader = FakeLoader(
        LoaderModel(workers, seconds, jitter), 0.0, lambda sd: float(np.exp(sd * rng.standard_normal()))
    )
    now, times = 0.0, []
    for _ in range(steps):
        done = loader.take(now) + computing
        times.append(done - now)
        now = done
    return times[2 * workers :]


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
@pytest.mark.parametrize("jitter", [0.0, 0.02, 0.05])
def test_bunches_of_an_in_order_loader_are_found_in_the_times_alone(workers: int, jitter: float) -> None:
    times = bunched(workers, 0.04 * workers, 0.01, jitter, 12 * workers)
    assert period(times) % workers == 0


@pytest.mark.parametrize("every", [2, 5, 10, 32])
def test_work_that_comes_once_in_so_many_steps_makes_a_cycle(every: int) -> None:
    rng = np.random.default_rng(every)
    times = [0.02 + 0.001 * rng.standard_normal() + (0.05 if step % every == 0 else 0.0) for step in range(5 * every)]
    assert period(times) == every


def test_noise_drift_and_bursts_make_none() -> None:
    found = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found.append(period(list(np.exp(0.1 * rng.standard_normal(30)))))
    assert sum(one > 1 for one in found) <= 6
    assert period([0.02 + 0.001 * step for step in range(40)]) == 1
    assert period([0.02] * 20 + [0.4] + [0.02] * 20) == 1
    assert period([0.02] * 40) == period([0.02, 0.03]) == period([]) == 1


@pytest.mark.parametrize(
    ("workers", "waiting", "cycle"), [(8, 0.5, 8), (8, 0.001, 1), (0, 0.5, 1), (1, 0.5, 1), (2, 0.02, 2)]
)
def test_workers_set_the_cycle_where_training_waits_for_them(workers: int, waiting: float, cycle: int) -> None:
    assert cycle_of([0.02] * 6, workers, waiting) == cycle


def test_both_together_make_the_least_common_multiple_unless_that_is_too_long() -> None:
    times = [0.02 + (0.05 if step % 6 == 0 else 0.0) for step in range(60)]
    assert cycle_of(times, 4, 0.5) == 12
    prime = [0.02 + (0.05 if step % 79 == 0 else 0.0) for step in range(79 * 4)]
    assert cycle_of(prime, 16, 0.5) == 79 <= LONGEST
