"""Beliefs about each change: predictions, moved by what plans have shown."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.records import Estimate, EstimateKind
from autoopt.search.planner import UNKNOWN_SD, USUAL_SD, Beliefs
from autoopt.search.whole_run_confirmation import InWholeRun


def told(value: float, kind: EstimateKind = EstimateKind.TRIED) -> Estimate:
    return Estimate(value=value, low=value, high=value, n=1, kind=kind)


def test_a_prediction_is_believed_until_something_is_seen() -> None:
    beliefs = Beliefs()
    assert beliefs.believed("fused", told(1.1)) == told(1.1)
    assert beliefs.believed("fused", told(1.4, EstimateKind.BOUND)) is None
    assert beliefs.believed("fused", None) is None
    assert beliefs.of([("fused", told(1.1))]) == pytest.approx((log(1.1), USUAL_SD))


@pytest.mark.parametrize(
    ("predicted", "mean", "spread"),
    [
        (told(1.1), log(1.1), USUAL_SD),
        (told(2.0), log(2.0), log(2.0) / 2),
        (None, 0.0, UNKNOWN_SD),
        (told(1.2, EstimateKind.BOUND), 0.0, log(1.2)),
    ],
)
def test_one_comparison_is_weighed_with_the_prediction(predicted: Estimate | None, mean: float, spread: float) -> None:
    beliefs, gain, error = Beliefs(), 0.3, 0.15
    beliefs.saw([("one", predicted)], gain, error)
    weight = spread**2 / (spread**2 + error**2)
    assert beliefs.of([("one", predicted)]) == pytest.approx((mean + weight * (gain - mean), weight**0.5 * error))


def test_what_a_plan_lacks_is_shared_by_its_changes_and_told_apart_by_the_next_plan() -> None:
    """Rows, bf16 and one thread promised 1.5x, and brought nothing; rows alone bring what they promise."""
    beliefs = Beliefs()
    rows, bf16, thread = ("rows", told(1.4)), ("bf16", told(1.02)), ("threads", told(1.05))
    beliefs.saw([rows, bf16, thread], log(0.97), 0.04)
    assert beliefs.believed(*bf16).value < 1.0  # type: ignore[union-attr]
    assert beliefs.believed(*rows).value < 1.3  # type: ignore[union-attr]
    beliefs.saw([rows], log(1.4), 0.04)
    assert beliefs.believed(*rows).value == pytest.approx(1.4, rel=0.05)  # type: ignore[union-attr]
    for one in (bf16, thread):
        believed = beliefs.believed(*one)
        assert believed is not None
        assert believed.value < 0.9
        assert believed.kind is EstimateKind.TRIED


def test_what_was_seen_corrects_another_prediction_of_the_same_change() -> None:
    beliefs = Beliefs()
    beliefs.saw([("workers", told(1.5))], log(1.2), 0.01)
    elsewhere = beliefs.believed("workers", told(1.1))
    assert elsewhere is not None
    assert elsewhere.value == pytest.approx(1.1 * 1.2 / 1.5, rel=0.01)


@given(
    gains=st.lists(st.floats(-0.3, 0.5), min_size=2, max_size=5),
    plans=st.lists(st.sets(st.integers(0, 4), min_size=1), min_size=1, max_size=12),
    seed=st.integers(0, 2**16),
)
def test_comparisons_make_nothing_less_certain_and_their_order_is_none(
    gains: list[float], plans: list[set[int]], seed: int
) -> None:
    rows = [[(str(i), None) for i in sorted(plan) if i < len(gains)] for plan in plans]
    rows = [row for row in rows if row]
    noise = np.random.default_rng(seed).normal(0, 0.05, len(rows))
    seen = [(row, sum(gains[int(name)] for name, _ in row) + off) for row, off in zip(rows, noise, strict=True)]
    one, other = Beliefs(), Beliefs()
    for row, gain in seen:
        before = one.of(row)[1]
        one.saw(row, gain, 0.05)
        assert one.of(row)[1] <= before + 1e-12
    for row, gain in reversed(seen):
        other.saw(row, gain, 0.05)
    for row in rows:
        assert one.of(row) == pytest.approx(other.of(row), abs=1e-6)
        assert exp(one.of(row)[0]) > 0


@pytest.mark.parametrize(
    ("steps", "both", "seconds"),
    [(2.0, 1.0, 16 - 4), (1.0, 2.0, 16 - 5), (2.0, 2.0, 16 - 4 - 5), (1.0, 1.0, 16), (1e9, 1e9, 0.8)],
)
def test_a_whole_run_gains_what_its_steps_and_evaluations_save_of_it(steps: float, both: float, seconds: float) -> None:
    """Of 16 s, 8 s are steps, 2 s evaluations, and 6 s imports and the like, which nothing shortens."""
    run = InWholeRun(run=16.0, steps=8.0, between=2.0)
    assert 16.0 / exp(run.gain(log(steps), log(both))) == pytest.approx(seconds)


@given(st.floats(-0.2, 0.5), st.floats(-0.2, 0.5))
def test_shares_are_how_the_gain_of_the_run_changes(steps: float, both: float) -> None:
    run, little = InWholeRun(run=30.0, steps=8.0, between=2.0), 1e-6
    now = run.gain(steps, both)
    changes = (run.gain(steps + little, both) - now) / little, (run.gain(steps, both + little) - now) / little
    assert run.shares(steps, both) == pytest.approx(changes, rel=1e-3, abs=1e-4)
