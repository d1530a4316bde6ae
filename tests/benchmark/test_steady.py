"""The steady state is found in step times: late, never, after a burst, and it costs what came before."""

from __future__ import annotations

import numpy as np
import pytest

from autoopt.benchmark.steady import change_points, find_steady, warmup_excess


def series(*parts: tuple[int, float], noise: float = 0.03, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [seconds * float(np.exp(noise * rng.standard_t(3))) for count, seconds in parts for _ in range(count)]


def test_steps_that_are_steady_from_the_start() -> None:
    found = find_steady(series((100, 0.01)))
    assert found is not None
    assert found.start == 0
    assert found.seconds == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("warm", [1, 3, 20])
@pytest.mark.parametrize("seed", range(5))
def test_slow_first_steps_are_warm_up(warm: int, seed: int) -> None:
    times = series((warm, 0.2), (200, 0.01), seed=seed)
    found = find_steady(times)
    assert found is not None
    assert warm <= found.start <= warm + 8
    assert warmup_excess(times, found) == pytest.approx(warm * 0.19, rel=0.15)


def test_a_compilation_is_charged() -> None:
    times = series((1, 30.0), (1, 12.0), (40, 0.05))
    found = find_steady(times)
    assert found is not None
    assert found.start == 2
    assert warmup_excess(times, found) == pytest.approx(41.9, rel=0.1)


@pytest.mark.parametrize("seed", range(10))
def test_a_burst_of_foreign_load_is_no_warm_up(seed: int) -> None:
    found = find_steady(series((60, 0.01), (15, 0.02), (60, 0.01), seed=seed))
    assert found is not None
    assert found.start == 0


def test_a_level_that_just_changed_is_not_steady_yet() -> None:
    assert find_steady(series((50, 0.05), (2, 0.01))) is None
    assert find_steady(series((50, 0.05), (50, 0.01))) is not None


def test_too_few_steps_say_nothing() -> None:
    assert find_steady([0.1] * 7) is None
    assert find_steady([]) is None


def test_steps_that_get_faster_for_ever_are_not_steady() -> None:
    assert find_steady([1.0 * 0.9**step for step in range(60)]) is None


def test_no_excess_below_zero() -> None:
    times = [0.001] * 5 + [0.01] * 50
    found = find_steady(times)
    assert found is not None
    assert warmup_excess(times, found) >= 0.0


def test_change_points_cut_where_the_level_changes() -> None:
    values = np.log(np.array([1.0] * 20 + [2.0] * 20 + [1.5] * 20))
    assert change_points(values) == [(0, 20), (20, 40), (40, 60)]
    assert change_points(np.zeros(30)) == [(0, 30)]
