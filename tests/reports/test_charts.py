"""Scales and marks: everything stays on the paper."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoopt_reports.charts.plane import Frame, Scale, frame, linear_ticks, log_ticks, span


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_linear_ticks_stand_inside(low: float, width: float) -> None:
    ticks = linear_ticks(low, low + width)
    assert len(ticks) <= 24
    slack = 1e-6 * width + 1e-9 * abs(low)
    assert all(low - slack <= t <= low + width + slack for t in ticks) or len(ticks) == 1


@given(st.floats(1e-6, 1e12), st.floats(1.001, 1e9))
def test_log_ticks_stand_inside(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert all(low * 0.999 <= t <= low * factor * 1.001 for t in ticks)
    assert len(ticks) < 40


@given(st.lists(st.floats(1e-9, 1e12), min_size=1), st.booleans())
def test_a_scale_keeps_everything_on_the_paper(values: list[float], log: bool) -> None:
    low, high = span(values, log=log)
    assert low < high
    scale = Scale(low, high, 3, 97, log=log)
    assert all(3 <= scale.at(v) <= 97 for v in [*values, -1.0, 0.0, 1e300])


def test_dots_and_paths_are_numbers_only() -> None:
    f: Frame = frame((0, 1), (0, 1))
    assert f.path([(0, 0), (1, 1)], "x").d == "M30 212.0L970 14.0"
    assert f.dots([(0, 0)], "x").d == "M30 212.0h0"
