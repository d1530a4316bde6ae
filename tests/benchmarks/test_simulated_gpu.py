"""The GPU cases on a simulated device: what brings most is found, though each start costs seconds."""

from __future__ import annotations

from functools import cache
from statistics import fmean
from typing import Any

import pytest

from benchmarks.search.gpu import CASES, run


@cache
def found(name: str, minutes: int, seed: int = 0) -> dict[str, Any]:
    """What a run of so many minutes comes to."""
    return run(next(case for case in CASES if case.name == name), 60.0 * minutes, seed)


@pytest.mark.parametrize("minutes", [8, 30])
def test_most_of_what_there_is_is_found(minutes: int) -> None:
    """One seed of each case: any single one may miss a change, all of them together do not."""
    runs = [found(case.name, minutes) for case in CASES]
    assert all(each["share"] > 0.2 for each in runs)
    assert fmean(each["share"] for each in runs) > 0.5
    assert all(trial["minute"] <= minutes for each in runs for trial in each["trials"])
    assert all(each["seconds"] <= 60.0 * minutes for each in runs), "no plan is made that there is no time to test"


def test_what_takes_a_minute_to_start_does_not_keep_the_rest_from_its_proof() -> None:
    """Eight minutes: compiled for 50 s in each process, the stack could not be proved; without that it is."""
    assert "amp" in found("gpt2", 8)["plan"]


def test_what_was_trained_beside_the_baseline_has_the_rest_of_the_time_for_its_proof() -> None:
    """The time of a training that had been made was kept back for it: two pairs of processes, and 93 s unused."""
    assert sum(found("llm_fit", 8, seed)["plan"] == ["amp"] for seed in range(4)) >= 3


def test_what_is_no_use_beside_another_is_not_kept_with_it() -> None:
    assert "matmul_precision" not in found("resnet50", 30)["plan"]
