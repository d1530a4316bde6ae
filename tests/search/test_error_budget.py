"""The error budget of a run: what all comparisons may spend together, and that real gains are still kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from autoopt.search.compare.error_budget import ALPHA, alpha_of
from autoopt.search.compare.statistics import BetweenProcess, TwoLevel
from benchmarks.truth.placebo_runs import one_run


@given(st.integers(1, 500))
def test_a_run_without_a_gain_spends_no_more_than_its_budget(candidates: int) -> None:
    assert sum(alpha_of(tested, 0) for tested in range(candidates)) <= ALPHA


@given(st.integers(0, 50), st.integers(0, 50))
def test_what_was_kept_earns_more(tested: int, kept: int) -> None:
    assert alpha_of(tested, kept + 1) > alpha_of(tested, kept) > alpha_of(tested + 1, kept)


def test_gains_worth_having_are_kept_under_the_budget() -> None:
    rows = one_run("normal", "equal", 1, (1.0, 1.3, 1.0, 1.5, 1.25))
    assert [row["kept"] for row in rows] == [False, True, False, True, True]


def test_what_calm_plans_showed_weighs_little_for_another_plan() -> None:
    """Two pairs of processes that happen to agree at 1.09 are no proof of a gain, however calm the plans before."""
    values, errors = [0.085, 0.095], [0.012, 0.012]
    assert TwoLevel(values, errors, BetweenProcess(0.02, 12.0)).above(0.01, 0.05)
    assert not TwoLevel(values, errors, BetweenProcess(0.02, 2.0)).above(0.01, 0.05)
