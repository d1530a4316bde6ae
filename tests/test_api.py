"""``autoopt.optimize`` as a function, around a run that is stood in for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sample
from autoopt import api
from autoopt.records import Result
from autoopt_reports import html


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Result:
    made = sample.win()
    reproduce = made.reproduce.model_copy(update={"run_directory": str(tmp_path)})
    made = made.model_copy(update={"reproduce": reproduce})
    monkeypatch.setattr(api, "check_command", lambda *args: None)
    monkeypatch.setattr(api, "optimize_run", lambda *args, **words: made)
    return made


def test_it_writes_the_report(result: Result, tmp_path: Path) -> None:
    assert api.optimize("mine:build") is result
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")


def test_a_report_that_cannot_be_rendered_costs_no_result(
    result: Result, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fails(*args: Any) -> Path:
        raise ValueError("a template is broken")

    monkeypatch.setattr(html, "render", fails)
    assert api.optimize("mine:build") is result
    assert f"a template is broken; render it later: autoopt report {tmp_path}" in caplog.text
