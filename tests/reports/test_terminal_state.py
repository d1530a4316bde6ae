"""The state behind the terminal: time left, gains that stack, first steps, and events that it does not know."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from autoopt import events as e
from autoopt.records import Estimate, EstimateKind, Prediction
from autoopt_reports.frame import draw
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


def test_the_first_steps_rank_the_stages() -> None:
    look = e.FirstSteps(at=7.0, steps=24, step_seconds=0.06, shares={"forward": 0.3, "data": 0.5, "other": 0.01})
    told = "60.0 ms a step; data 50.0 %, forward 30.0 %"
    assert describe(look) == f"first 24 steps: {told}"
    state = State()
    state.update(look)
    frame = Console(width=140, file=io.StringIO())
    frame.print(draw(state, 7.0, 60.0, 140, 24))
    assert f"first steps: {told}" in frame.file.getvalue()  # type: ignore[attr-defined]


def test_opportunities_are_shown_before_anything_is_measured() -> None:
    found = e.Opportunities(at_most=((2.5, ("workers", "cache")), (1.2, ("amp",))), unknown=("a", *"bcdefgh"))
    told = ["2.50× workers, cache", "1.20× amp", "8 need a measurement first"]
    assert describe(found) == "upper bounds of the gain: " + "; ".join(told)
    state = State()
    state.update(found)
    frame = Console(width=100, file=io.StringIO())
    frame.print(draw(state, 7.0, 60.0, 100, 24))
    assert all(line in frame.file.getvalue() for line in told)  # type: ignore[attr-defined]
    nearly_all = e.Opportunities(at_most=((1000.0, ("threads",)), (20.0, ("amp", "compile")), (1.2, ("cache",))))
    assert describe(nearly_all) == "upper bounds of the gain: no bound for threads, amp, compile; 1.20× cache"
    assert describe(e.Opportunities()) == "upper bounds of the gain: none from the first steps"


def test_predicted_gains_and_bounds_are_distinguished() -> None:
    sure, most = (
        Estimate(value=1.5, low=1.3, high=1.7, n=1),
        Estimate(value=2.0, low=1.0, high=2.0, n=1, kind=EstimateKind.BOUND),
    )
    known = (("amp", sure), ("cache", sure), ("threads", most), ("allocator", None))
    none = Estimate(value=0.9, low=0.8, high=1.0, n=1)
    known = (*known, ("compile", none))
    found = e.Predicted(predictions=tuple(Prediction(strategy=name, predicted=value) for name, value in known))
    told = ["1.50× amp, cache", "at most 2.00× threads", "no prediction for allocator"]
    assert describe(found) == "predicted gains: " + "; ".join(told)
    state = State()
    state.update(e.Opportunities(at_most=((2.5, ("workers",)),)))
    state.update(found)
    frame = Console(width=100, file=io.StringIO())
    frame.print(draw(state, 7.0, 60.0, 100, 24))
    assert all(line in frame.file.getvalue() for line in told)  # type: ignore[attr-defined]
    assert "2.50" not in frame.file.getvalue()  # type: ignore[attr-defined]
    assert describe(e.Predicted()) == "predicted gains: none"
