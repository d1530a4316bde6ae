"""How many steps must be steady before anything is measured."""

from __future__ import annotations

import pytest

from autoopt.benchmark.steady import find_steady
from autoopt.benchmark.warmup import least_groups


@pytest.mark.parametrize(("step", "groups"), [(0.001, 4), (0.2, 4), (0.35, 3), (0.6, 2), (5.0, 2)])
def test_slow_steps_are_steady_once_they_were_for_a_second(step: float, groups: int) -> None:
    assert least_groups([9.0, *[step] * 4]) == groups
    assert least_groups([9.0, *[step] * 3, 2 * step]) == 4


@pytest.mark.parametrize(("first", "steps"), [((), 4), ((6.0,), 4), ((30.0, 2.0), 4), ((9.0, 4.0, 2.0), 5)])
def test_what_a_process_pays_first_is_left_out_of_few_slow_steps(first: tuple[float, ...], steps: int) -> None:
    times: list[float] = []
    for seconds in (*first, *[0.6] * 20):
        times.append(seconds)
        found = find_steady(times, least_groups(times))
        if found is not None:
            break
    assert len(times) == steps
