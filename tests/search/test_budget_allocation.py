"""The allocation of the budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.search.budget_allocation import KEPT_BACK_AT_MOST, BudgetAllocation


def test_a_baseline_without_a_target_value_has_a_small_share() -> None:
    assert BudgetAllocation(budget=600.0).baseline(target_given=False) == 48.0
    assert BudgetAllocation(budget=600.0).baseline(target_given=True) == 90.0


def test_a_short_run_keeps_most_of_its_time_for_the_search_until_something_is_found() -> None:
    short = BudgetAllocation(budget=180.0, start_seconds=2.5, baseline_seconds=45.0, pair_seconds=9.0)
    assert short.search_deadline(0) >= 0.7 * short.budget


@pytest.mark.parametrize("changes", [0, 1, 3])
def test_a_long_run_keeps_back_no_more_than_the_end_takes(changes: int) -> None:
    """Two trainings of each, each change left out once, and the final comparison: minutes of two hours."""
    long = BudgetAllocation(budget=7200.0, start_seconds=2.0, baseline_seconds=60.0, pair_seconds=9.0)
    assert long.kept_back(changes) <= 4 * 62.0 + (changes + 1) * long.comparison


def test_the_end_of_a_run_in_seconds() -> None:
    """One training of 100 s with a start of 5 s; a plan twice as fast takes half of that."""
    allocation = BudgetAllocation(budget=10_000.0, start_seconds=5.0, baseline_seconds=100.0)
    assert allocation.in_turns(2.0) == pytest.approx(105.0 * 1.5)
    assert allocation.in_turns(0.5) == pytest.approx(105.0 * 2), "nothing is expected to become slower"
    assert allocation.kept_back(0, 2.0) == pytest.approx(allocation.verification(1, 2.0))
    assert allocation.verification(1, 2.0) == pytest.approx(allocation.verification(1) - 52.5)
    assert allocation.last_deadline(2.0) == pytest.approx(10_000.0 - 105.0 * 1.5 - allocation.comparison)
    short = BudgetAllocation(budget=100.0, start_seconds=5.0, baseline_seconds=100.0)
    assert short.last_deadline() == pytest.approx(100.0 * (1 - KEPT_BACK_AT_MOST))


def test_a_single_change_needs_no_ablation_of_its_own() -> None:
    allocation = BudgetAllocation(budget=600.0, start_seconds=2.0)
    assert allocation.ablation(0) == allocation.ablation(1) == 0.0
    assert allocation.ablation(3) > allocation.ablation(2) > 0.0


@given(
    budget=st.floats(20.0, 1e5),
    start=st.floats(0.5, 60.0),
    training=st.floats(0.0, 1e4),
    changes=st.integers(0, 9),
    speedup=st.floats(1.0, 50.0),
)
def test_a_faster_plan_needs_less_time_at_the_end_and_never_half_the_budget(
    budget: float, start: float, training: float, changes: int, speedup: float
) -> None:
    allocation = BudgetAllocation(budget=budget, start_seconds=start, baseline_seconds=training)
    kept = allocation.kept_back(changes, speedup)
    assert 0.0 < kept <= allocation.kept_back(changes) <= KEPT_BACK_AT_MOST * budget


def test_a_comparison_is_planned_by_the_pairs_that_were_seen() -> None:
    seen = BudgetAllocation(budget=200.0, start_seconds=2.0, pair_seconds=10.5)
    assert seen.comparison == 21.0
    assert BudgetAllocation(budget=200.0, start_seconds=2.0).comparison == 16.0
