"""The state behind the terminal: time left, gains that stack, and events that it does not know."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt import events as e
from autoopt.records import Estimate
from autoopt_reports.live import describe
from autoopt_reports.state import State, stacked
from autoopt_reports.terminal import clock_text


def test_eta_needs_history_and_a_plan_and_stays_within_the_budget() -> None:
    state = State()
    assert state.eta(0, 100) is None
    state.trial_seconds, state.remaining = [10.0, 20.0, 30.0, 40.0], 3
    assert state.eta(0, 1000) == (60.0, 120.0)
    assert state.eta(950, 1000) == (50.0, 50.0)
    state.finished = True
    assert state.eta(0, 1000) is None


def test_unknown_events_do_no_harm() -> None:
    class Later(e.Event):
        pass

    state = State()
    state.update(Later(at=5))
    assert state.at == 5
    assert describe(Later()) == ""


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (41, "0:41"), (725, "12:05"), (3723, "1:02:03"), (-3, "0:00")]
)
def test_clock(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@given(st.lists(st.tuples(st.floats(0.3, 3), st.floats(0, 0.3), st.floats(0, 0.3)), min_size=1, max_size=6))
def test_gains_that_stack_have_an_interval_no_narrower_than_any_of_them(
    gains: list[tuple[float, float, float]],
) -> None:
    each = [Estimate(value=v, low=v * (1 - below), high=v * (1 + above), n=3) for v, below, above in gains]
    product = stacked(each)
    assert product is not None
    assert product.value == pytest.approx(math.prod(gain.value for gain in each))
    for gain in each:
        assert product.high / product.value >= gain.high / gain.value * (1 - 1e-9)
        assert product.low / product.value <= gain.low / gain.value * (1 + 1e-9)
    assert stacked([]) is None
