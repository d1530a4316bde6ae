"""Cases of the quality benchmark that take seconds: no broken one is kept, and honest ones pass by their probes."""

from __future__ import annotations

import pytest

from autoopt.records import Change, Plan
from benchmarks.truth.quality_cases import Judged, kept
from benchmarks.truth.quality_changes import BROKEN, HONEST
from benchmarks.truth.quality_nets import tabular

CASES = {case.name: case for case in (*BROKEN, *HONEST)}
WORDS = {
    "same_order_each_epoch": "another batch",
    "stale_average_in_evaluation": "on the same weights",
    "layers_frozen_later": "is not updated in step",
}


@pytest.fixture(scope="module")
def judged(tmp_path_factory) -> Judged:
    mine = tuple(case for case in CASES.values() if case.build is tabular)
    return Judged("tabular", mine, tmp_path_factory.mktemp("quality"))


@pytest.mark.parametrize("name", [case.name for case in BROKEN if case.build is tabular])
def test_a_broken_change_is_not_passed_by_probes(name: str, judged: Judged) -> None:
    _, found = judged.level(name)
    assert found.passed is not True, found.detail
    assert WORDS.get(name, "") in found.detail


@pytest.mark.parametrize(("name", "level"), [("bf16_tabular", "equivalent")])
def test_an_honest_change_passes_and_says_what_that_rests_on(name: str, level: str, judged: Judged) -> None:
    plan, found = judged.level(name)
    assert (found.level, found.passed) == (level, True), found.detail
    assert found.step_penalty is not None
    assert 1.0 <= found.step_penalty.low <= found.step_penalty.value <= found.step_penalty.high < 1.05
    assert found.bias_bound is not None
    assert 0.0 < found.bias_bound <= 0.2
    assert "across the end of an epoch" in found.rests_on
    assert "the last steps of a training of 256" in found.rests_on
    assert "after step 256" in found.would_miss
    after = judged.trained(plan, found)
    assert after.passed is not False, after.detail
    assert after.step_penalty == found.step_penalty
    row = {"level": found.level, "passed": found.passed, "trained_passed": after.passed}
    assert kept(row) is (after.passed is True)


def test_the_same_plan_again_is_identical_with_its_own_evaluation(judged: Judged) -> None:
    before, after = judged.gate.probes.pair(Plan(), Plan(changes=(Change(strategy="workers_tabular"),)), judged.facts)
    assert before.probe.own_metric is not None
    assert before.probe.own_metric == after.probe.own_metric
    assert judged.level("workers_tabular")[1].level == "identical"
