"""The table of reported cases: made of what was measured, each row answered by a strategy that there is."""

from __future__ import annotations

import pytest

from autoopt.loading.importing import load as load_builder
from autoopt.loading.validation import build
from autoopt.records import Advice, Change, Plan, Result
from autoopt.registry import load_strategies
from benchmarks.documents import ROOT
from benchmarks.reports.__main__ import settled
from benchmarks.reports.asked import ASKS, SCRIPTS, of_result
from benchmarks.reports.cases import REPORTS, Report


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


def test_every_ask_has_its_script_and_an_answer_that_there_is() -> None:
    names = set(load_strategies())
    assert {ask.script for ask in ASKS} == {path.stem for path in SCRIPTS.glob("*.py")}
    for ask in ASKS:
        compile((SCRIPTS / f"{ask.script}.py").read_text(), ask.script, "exec")
        if "optimize" in ask.command and all(word.islower() and " " not in word for word in ask.wanted):
            assert set(ask.wanted) <= names, ask.kind


@pytest.mark.parametrize(
    ("kept", "advice", "found"), [(("trim_padding",), (), True), ((), ("Importing x: 3 s",), False), ((), (), False)]
)
def test_an_ask_is_found_by_what_was_kept_or_advised(
    kept: tuple[str, ...], advice: tuple[str, ...], found: bool
) -> None:
    base = Result.model_validate_json((ROOT / "tests" / "golden" / "win.json").read_text())
    plan = Plan(changes=tuple(Change(strategy=name) for name in kept))
    result = base.model_copy(
        update={
            "best": base.best.model_copy(update={"plan": plan}),
            "advice": tuple(Advice(title=title, evidence="seen", suggestion="go") for title in advice),
        }
    )
    (ask,) = [each for each in ASKS if each.script == "padded_texts"]
    assert of_result(ask, result)["found"] is found
