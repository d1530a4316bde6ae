"""The benchmark of truth: effects follow from amounts, intervals from processes; tables count what there is."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.truth import headline_coverage
from benchmarks.truth import overhead as truth_overhead
from benchmarks.truth import several as truth_several
from benchmarks.truth import workload as truth_workload


@pytest.mark.parametrize("effect", [0.97, 1.0, 1.1, 3.0])
def test_what_is_left_of_the_work_gives_the_effect(effect: float) -> None:
    rest = 0.1
    assert (rest + 1.0) / (rest + truth_workload.left_for(effect, rest)) == pytest.approx(effect)


def test_an_effect_that_no_work_can_give_is_refused() -> None:
    with pytest.raises(ValueError, match="less than no work"):
        truth_workload.left_for(20.0, 0.1)


@pytest.mark.parametrize("work", [0.0, 2.0, 2.25])
def test_the_dataset_burns_as_much_as_it_says(work: float, monkeypatch: pytest.MonkeyPatch) -> None:
    sorts: list[int] = []
    monkeypatch.setattr(np, "sort", lambda array: sorts.append(len(array)))
    dataset = truth_workload.Burning(work)
    for index in range(1000):
        dataset[index]
    assert len(sorts) == 1000 * work


def test_the_interval_of_the_overhead_is_one_over_processes() -> None:
    found = [{"log_ratio": ratio, "step_seconds": 0.001, "pairs": 50} for ratio in (0.001, 0.002, 0.003)]
    three = truth_overhead.summary("digits", found)
    assert (three["processes"], three["block_pairs_each"]) == (3, 50)
    assert three["low"] < 1.0 < three["ratio"] < three["high"] < 1.006
    assert truth_overhead.summary("digits", found[:1])["low"] == 0.0, "one process says nothing of the next"


def test_several_at_once_are_judged_by_what_they_say_of_the_truth() -> None:
    pairs, at_once = (truth_several.summary("parts", "normal", "equal", 2, at_once=way) for way in (False, True))
    assert at_once["accepted"] == 1.0
    assert at_once["seconds"] < pairs["seconds"], "of the simulated clock"
    assert truth_several.judged("parts", at_once)
    assert not truth_several.judged("parts", {**at_once, "coverage": 0.9})
    assert not truth_several.judged("placebos", at_once)


def test_the_headline_covers_the_truth() -> None:
    """A few runs of the simulation; the whole of it is ``python -m benchmarks.truth.headline_coverage``."""
    document = headline_coverage.measure(60)
    assert headline_coverage.lowest(document) > 0.85
    text = headline_coverage.table(document)
    assert all(f"| {machine.name} |" in text for machine in headline_coverage.MACHINES)


def test_the_coverage_of_the_last_run_holds() -> None:
    document = json.loads(headline_coverage.DOCUMENT.read_text())
    assert headline_coverage.lowest(document) >= headline_coverage.LEAST
