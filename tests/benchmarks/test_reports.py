"""The table of reported cases: made of what was measured, each row answered by a strategy that there is."""

from __future__ import annotations

import pytest

from autoopt.loading.importing import load as load_builder
from autoopt.loading.validation import build
from autoopt.registry import load_strategies
from benchmarks.reports.__main__ import settled
from benchmarks.reports.cases import REPORTS, ROOT, Report


def test_what_was_measured_beside_other_programs_is_measured_again() -> None:
    assert not settled(None)
    assert not settled({"environment": {"load": [3.0, 1.0, 1.0], "cores": 2}})
    assert settled({"environment": {"load": [1.0, 9.0, 9.0], "cores": 2}})


def test_every_report_names_a_strategy_that_there_is_or_says_why_not() -> None:
    names = set(load_strategies())
    for report in REPORTS:
        assert report.strategy in names or (report.strategy is None and report.note), report.kind


QUICK = [report for report in REPORTS if report.build not in (None, "lost_affinity", "garbage", "lists_of_numbers")]


@pytest.mark.parametrize("report", QUICK, ids=lambda report: report.build)
def test_its_workload_can_be_built(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    workload = build(load_builder(report.spec, (str(ROOT),)))
    assert next(iter(workload.model.parameters())).requires_grad
