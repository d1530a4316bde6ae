"""The answer of a comparison: what is faster, what holds, and that nothing undecided passes."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.comparing.answer import answer_of
from autoopt.records import Estimate
from autoopt.records.comparing import Compared, ComparedSide, Learning, LedgerEntry, Requirement
from autoopt_reports import compared
from tests.comparing.conftest import a_comparison

FASTER = Requirement(kind="faster")
NOT_SLOWER = Requirement(kind="not-slower", margin=0.03)


def ratio(low: float, high: float) -> Estimate:
    return Estimate(value=(low * high) ** 0.5, low=low, high=high, n=3)


def document(throughput: Estimate | None, requirement: Requirement | None = None, **other: Any) -> Compared:
    same = Learning(level="identical", detail="same weights", steps=32, again=0.0, measured_apart=0.0)
    fields = {"learning": same, "planned_run": throughput, "throughput": throughput, "requirement": requirement}
    return a_comparison(
        baseline=ComparedSide(given="main", kind="revision", spec="m:b", commit="a" * 40, step_seconds=0.02),
        candidate=ComparedSide(given="m:b|<script>", kind="build", spec="m:b"),
        **{**fields, **other},
    )


@pytest.mark.parametrize(
    ("low", "high", "requirement", "answer", "holds"),
    [
        (1.1, 1.3, FASTER, "faster", True),
        (0.99, 1.3, FASTER, "undecided", False),
        (0.98, 0.999, FASTER, "slower", False),
        (0.98, 0.999, NOT_SLOWER, "not_slower", True),
        (0.98, 1.2, NOT_SLOWER, "not_slower", True),
        (1.1, 1.2, NOT_SLOWER, "faster", True),
        (0.9, 0.99, NOT_SLOWER, "slower", False),
        (0.9, 1.2, NOT_SLOWER, "undecided", False),
        (0.995, 1.005, None, "no_difference", None),
        (0.5, 0.6, None, "slower", None),
    ],
)
def test_the_interval_decides(
    low: float, high: float, requirement: Requirement | None, answer: str, holds: Any
) -> None:
    found = answer_of(document(ratio(low, high), requirement), None, None, None)
    assert found.answer == answer
    assert (found.requirement.holds if found.requirement else None) is holds


@pytest.mark.parametrize(
    ("other", "failure", "refusal", "answer"),
    [
        ({"learning": Learning(detail="other weights")}, None, None, "undecided"),
        ({}, "not_finite: a loss is not finite", None, "failed"),
        ({}, None, "its blocks say 9x", "refused"),
        ({"throughput": None, "planned_run": None}, None, None, "undecided"),
        ({"learning": Learning(level="identical", measured_apart=0.9)}, None, None, "refused"),
        ({"learning": Learning(level="identical")}, None, None, "undecided"),
        ({"control": ratio(0.4, 0.99)}, None, None, "undecided"),
        ({"whole": 0.95}, None, None, "undecided"),
        pytest.param({"planned_run": ratio(0.7, 0.8)}, None, None, "slower", id="a longer start eats a faster step"),
    ],
)
def test_nothing_else_passes(other: dict[str, Any], failure: str | None, refusal: str | None, answer: str) -> None:
    made = document(ratio(2.0, 3.0), FASTER).model_copy(update=other)
    found = answer_of(made, None, failure, refusal)
    assert found.answer == answer
    assert found.reason
    assert not found.requirement.holds


def test_it_is_told_in_a_terminal_a_comment_and_a_page() -> None:
    entry = LedgerEntry(ask=3, alpha=0.001, total=0.05, left=0.02, e_value=12.345)
    found = answer_of(document(ratio(1.1, 1.3), FASTER, ledger=entry), None, None, None)
    lines = "\n".join(compared.summary(found))
    assert "faster: a step 1.20x [1.10, 1.30]" in lines
    assert "required: faster: holds" in lines
    assert "error rate left 0.02 of 0.05" in lines
    assert "e-value needed 1e+03, reached 12.3" in lines
    assert "throughput: - -> -" in lines
    assert "accuracy" not in lines
    comment = compared.markdown(found)
    assert "main (aaaaaaaaaaaa)" in comment
    assert "<script>" not in comment.replace("\\<script\\>", "")
    page = compared.page(found)
    assert page.lower().startswith("<!doctype html>")
    assert "m:b|&lt;script&gt; against main" in page


def test_the_metric_of_both_sides_stands_beside_the_speed() -> None:
    sides = {"given": "m:b", "kind": "script", "spec": "m:b"}
    fields: dict[str, Any] = {
        "baseline": ComparedSide(**sides, step_seconds=0.02, metric=0.9, loss=0.5),
        "candidate": ComparedSide(**sides, step_seconds=0.01, metric=0.88, loss=0.5),
        "metric": "val acc",
        "metric_difference": -0.02,
        "loss_batches": 32,
    }
    found = document(ratio(1.9, 2.1)).model_copy(update=fields)
    lines = list(compared.summary(found))
    assert "  step: 20.0 ms -> 10.0 ms (-50.0 %)" in lines
    assert "  val acc after 32 steps: 0.9 -> 0.88 (-0.02)" in lines
    assert "  training loss after 32 steps, 32 batches: 0.5 -> 0.5 (0)" in lines
    assert "| val acc after 32 steps | 0.9 | 0.88 | -0.02 |" in compared.markdown(found)
    assert "<td>val acc after 32 steps</td><td>0.9</td><td>0.88</td><td>-0.02</td>" in compared.page(found)
    unknown = found.model_copy(update={"metric": None, "metric_note": "ended without an evaluation"})
    assert "metric: not measured: ended without an evaluation" in list(compared.summary(unknown))
    assert "not measured: ended without an evaluation" in compared.markdown(unknown)
