"""The GPU cases on a simulated device: what brings most is found, though each start costs seconds."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.search.gpu import CASES, run


@pytest.mark.parametrize("minutes", [8, 30])
def test_most_of_what_there_is_is_found(minutes: int) -> None:
    """One seed of each case: any single one may miss a change, all of them together do not."""
    found = [run(case, 60.0 * minutes) for case in CASES]
    assert all(each["share"] > 0.2 for each in found)
    assert fmean(each["share"] for each in found) > 0.5
    assert all(trial["minute"] <= minutes for each in found for trial in each["trials"])


def test_what_takes_a_minute_to_start_does_not_keep_the_rest_from_its_proof() -> None:
    """Eight minutes: compiled for 50 s in each process, the stack could not be proved; without that it is."""
    gpt2 = next(case for case in CASES if case.name == "gpt2")
    assert "amp" in run(gpt2, 480.0)["plan"]


def test_a_run_without_a_target_trains_equal_steps_and_keeps_to_its_budget() -> None:
    """Trainings without a target went on to their limits at the end: 34 minutes of 30."""
    case = next(case for case in CASES if case.name == "bert")
    assert run(case, 1800.0)["seconds"] <= 1800.0


def test_what_was_trained_beside_the_baseline_has_the_rest_of_the_time_for_its_proof() -> None:
    """The time of a training that had been made was kept back for it: two pairs of processes, and 93 s unused."""
    case = next(case for case in CASES if case.name == "llm_fit")
    assert sum(run(case, 480.0, seed)["plan"] == ["amp"] for seed in range(4)) >= 3


@pytest.mark.parametrize("seed", [0, 3])
def test_no_plan_is_made_that_there_is_no_time_to_test(seed: int) -> None:
    """Parts of a stack were dropped at its end, and the plan that was left compared and trained: 8.5 minutes of 8."""
    case = next(case for case in CASES if case.name == "gpt2")
    assert run(case, 480.0, seed)["seconds"] <= 480.0


def test_what_is_no_use_beside_another_is_not_kept_with_it() -> None:
    case = next(case for case in CASES if case.name == "resnet50")
    assert "matmul_precision" not in run(case, 1800.0)["plan"]
