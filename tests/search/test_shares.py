"""How the budget is shared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoopt.search.budget_allocation import KEPT_BACK_AT_LEAST, KEPT_BACK_AT_MOST, MORE_SHARE, BudgetAllocation

SHORT = BudgetAllocation(budget=205.0, start_seconds=2.0, baseline_seconds=40.0)


def test_a_search_without_a_finding_keeps_back_one_training_of_what_may_still_come() -> None:
    """Nothing was kept: trainings from a second seed would have nothing to verify."""
    assert SHORT.kept_back(1) == SHORT.verification(seeds=1) + SHORT.comparison
    assert SHORT.search_deadline(1) > SHORT.search_deadline(2) + SHORT.baseline_seconds / 2


def test_what_was_kept_is_verified_from_two_seeds_and_ablated() -> None:
    long = BudgetAllocation(budget=3600.0, start_seconds=2.0, baseline_seconds=200.0)
    assert long.kept_back(3) == long.verification(seeds=2) + long.ablation(3) + long.comparison


def test_the_reserve_is_neither_the_whole_budget_nor_nothing() -> None:
    for changes in range(1, 9):
        assert SHORT.kept_back(changes) <= KEPT_BACK_AT_MOST * SHORT.budget
        assert BudgetAllocation(budget=7200.0).kept_back(changes) >= KEPT_BACK_AT_LEAST * 7200.0


def test_one_change_may_be_verified_within_the_reserve() -> None:
    """Its comparison, its start and its training, no slower than the baseline's."""
    assert SHORT.kept_back(1) >= SHORT.comparison + SHORT.start_seconds + SHORT.baseline_seconds


def test_ablation_and_a_second_seed_do_not_eat_up_a_short_search() -> None:
    must = SHORT.comparison + SHORT.verification(seeds=1)
    assert SHORT.kept_back(4) == must + MORE_SHARE * SHORT.budget


def test_the_last_change_needs_no_ablation_of_its_own() -> None:
    assert SHORT.ablation(0) == SHORT.ablation(1) == 0.0
    assert SHORT.ablation(3) == 2 * SHORT.comparison


@given(
    budget=st.floats(20.0, 1e5),
    start=st.floats(0.5, 60.0),
    training=st.floats(0.0, 1e4),
    changes=st.integers(1, 9),
    speedup=st.floats(1.0, 50.0),
)
def test_what_is_fast_already_needs_less_time_at_the_end(
    budget: float, start: float, training: float, changes: int, speedup: float
) -> None:
    shares = BudgetAllocation(budget=budget, start_seconds=start, baseline_seconds=training)
    kept = shares.kept_back(changes, speedup)
    assert kept <= shares.kept_back(changes) <= KEPT_BACK_AT_MOST * budget
    must = shares.comparison + shares.verification(1, speedup)
    assert kept >= min(must, KEPT_BACK_AT_MOST * budget) * (1 - 1e-9)


def test_a_comparison_is_planned_by_the_pairs_that_were_seen() -> None:
    seen = BudgetAllocation(budget=200.0, start_seconds=2.0, pair_seconds=10.5)
    assert seen.comparison == 21.0
    assert BudgetAllocation(budget=200.0, start_seconds=2.0).comparison == 16.0
