"""Comparisons of trainings whose loaders deliver in bunches, on simulated machines where the truth can be computed."""

from __future__ import annotations

import pytest

from benchmarks.truth.loaders import Case, run


@pytest.mark.parametrize("workers", [2, 8, 16])
@pytest.mark.parametrize("bound", ["input", "computing"])
def test_what_the_other_stage_hides_is_not_accepted(workers: int, bound: str) -> None:
    """With blocks of one to three steps and a trimmed mean, all of twenty were accepted at 2.2x with eight workers."""
    for seed in range(3):
        assert run(Case(workers, 0.02, bound, 1.0), seed)["decision"] != "accept"


@pytest.mark.parametrize("workers", [2, 8, 16])
@pytest.mark.parametrize("bound", ["input", "computing"])
@pytest.mark.parametrize("gain", [1.25, 2.0])
def test_a_gain_of_the_bound_stage_is_accepted_and_its_interval_holds_it(workers: int, bound: str, gain: float) -> None:
    for seed in range(2):
        found = run(Case(workers, 0.02, bound, gain), seed)
        assert found["decision"] == "accept"
        assert found["low"] <= gain <= found["high"]
        assert found["seconds"] < 120.0
