"""Cores that others used, from two readings of the kernel's counters."""

from __future__ import annotations

import pytest

from autoopt.benchmark.cputime import CpuTimes, foreign_cores, foreign_seconds

BEFORE = CpuTimes(own=2.0, busy=100.0)
LATER = CpuTimes(own=7.0, busy=120.0)


def test_what_this_process_did_not_use_is_of_others() -> None:
    assert foreign_seconds(BEFORE, LATER) == 15.0
    assert foreign_cores(BEFORE, LATER, 10.0) == 1.5
    assert foreign_cores(BEFORE, LATER, 20.0) == 0.75


def test_counters_that_tick_coarsely_never_say_less_than_nothing() -> None:
    after = CpuTimes(own=7.02, busy=105.0)
    assert foreign_seconds(BEFORE, after) == 0.0
    assert foreign_cores(BEFORE, after, 10.0) == 0.0


@pytest.mark.parametrize(("before", "after"), [(BEFORE, CpuTimes(own=7.0, busy=None)), (CpuTimes(2.0, None), LATER)])
def test_a_system_without_counters_tells_nothing(before: CpuTimes, after: CpuTimes) -> None:
    assert foreign_seconds(before, after) is None
    assert foreign_cores(before, after, 10.0) is None


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_readings_of_no_time_apart_tell_no_cores(seconds: float) -> None:
    assert foreign_cores(BEFORE, LATER, seconds) is None
