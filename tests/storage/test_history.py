"""The history of runs: one readable file that a search can do without."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.records import Change, Plan
from autoopt.storage.history import MOST_ENTRIES, History, Remembered

FOUND = Remembered(plan=Plan(changes=(Change(strategy="workers", setting={"num_workers": 2}),)), speedup=1.5)


def test_what_was_found_is_read_back_by_another(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.json"
    History(path).remember("a", FOUND)
    History(path).remember("b", FOUND.model_copy(update={"speedup": 2.0}))
    assert History(path).recall("a") == FOUND
    assert History(path).recall("b").speedup == 2.0
    assert History(path).recall("c") == Remembered()
    assert '"num_workers": 2' in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1, "workloads": {"a": {"plan": 3}}}'])
def test_a_damaged_file_says_nothing_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    assert History(path).recall("a") == Remembered()
    History(path).remember("a", FOUND)
    assert History(path).recall("a") == FOUND


def test_the_oldest_is_forgotten_first(tmp_path: Path) -> None:
    history = History(tmp_path / "history.json")
    for number in range(MOST_ENTRIES + 1):
        history.remember(str(number), FOUND)
    assert history.recall("0") == Remembered()
    assert history.recall(str(MOST_ENTRIES)) == FOUND


def test_where_nothing_can_be_written_nothing_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    history = History(tmp_path / "file" / "history.json")
    history.remember("a", FOUND)
    assert history.recall("a") == Remembered()


def test_the_variable_names_another_file_or_switches_it_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOOPT_HISTORY", "off")
    assert History.of_user() is None
    monkeypatch.setenv("AUTOOPT_HISTORY", str(tmp_path / "mine.json"))
    found = History.of_user()
    assert found is not None
    assert found.path == tmp_path / "mine.json"
    monkeypatch.delenv("AUTOOPT_HISTORY")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = History.of_user()
    assert found is not None
    assert found.path == tmp_path / "autoopt" / "history.json"
