"""What stays of runs: the history, the account of each comparison, the fingerprint."""

from __future__ import annotations

import csv
import io
import subprocess
from math import log
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoopt.benchmark.environment import git_commit
from autoopt.records import Change, Plan
from autoopt.search.compare.comparison import Comparison
from autoopt.storage.account import COLUMNS, entries, table
from autoopt.storage.fingerprint import differences, fingerprint, source_hashes
from autoopt.storage.history import MOST_ENTRIES, History, Remembered
from simulated import World, product, strategy

FOUND = Remembered(plan=Plan(changes=(Change(strategy="workers", setting={"num_workers": 2}),)), speedup=1.5)


def test_what_was_found_is_read_back_by_another(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.json"
    History(path).remember("a", FOUND)
    History(path).remember("b", FOUND.model_copy(update={"speedup": 2.0}))
    assert History(path).recall("a", Remembered) == FOUND
    assert History(path).recall("b", Remembered).speedup == 2.0
    assert History(path).recall("c", Remembered) == Remembered()
    assert '"num_workers": 2' in path.read_text()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema_version": 1, "workloads": {"a": {"plan": 3}}}'])
def test_a_damaged_file_says_nothing_and_is_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "history.json"
    path.write_text(text)
    assert History(path).recall("a", Remembered) == Remembered()
    History(path).remember("a", FOUND)
    assert History(path).recall("a", Remembered) == FOUND
    nowhere = History(path / "history.json")
    nowhere.remember("a", FOUND)
    assert nowhere.recall("a", Remembered) == Remembered(), "where nothing can be written nothing is remembered"


def test_the_oldest_is_forgotten_first(tmp_path: Path) -> None:
    history = History(tmp_path / "history.json")
    for number in range(MOST_ENTRIES + 1):
        history.remember(str(number), FOUND)
    assert history.recall("0", Remembered) == Remembered()
    assert history.recall(str(MOST_ENTRIES), Remembered) == FOUND


def test_the_variable_names_another_file_or_switches_it_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUTOOPT_HISTORY", "off")
    assert History.of_user() is None
    monkeypatch.setenv("AUTOOPT_HISTORY", str(tmp_path / "mine.json"))
    found = History.of_user()
    assert found.path == tmp_path / "mine.json"
    monkeypatch.delenv("AUTOOPT_HISTORY")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = History.of_user()
    assert found.path == tmp_path / "autoopt" / "history.json"


# account.csv: the blocks of a run from its journal, from which its ratios can be computed again.


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(
        tmp_path_factory.mktemp("run"),
        strategy("quick", switchable=True),
        strategy("other"),
        speed=product({"quick": 1.5, "other": 1.2}),
        budget=240.0,
    )
    made.outcome = made.go()
    return made


def test_each_comparison_of_the_run_is_in_the_account(world: World) -> None:
    state = world.outcome.state
    found = list(entries(world.run.directory.journal))
    measured: list[Comparison] = [*state.screenings, *state.comparisons.values(), *state.ablations]
    assert sum(len(seen.rows) for seen in measured) > 0
    rows = [entry.row for entry in found]
    for seen in measured:
        assert all(row in rows for row in seen.rows)
    assert {"trial", "look"} <= {entry.evidence.split()[0] for entry in found} | {"look"}


def test_a_ratio_is_computed_again_from_its_rows(world: World) -> None:
    """Of comparisons in which no round was left out and none came from an earlier one."""
    checked = 0
    for seen in (*world.outcome.state.screenings, *world.outcome.state.ablations):
        if len(seen.pairs) != 1 or seen.pairs[0].disturbed or not seen.rows:
            continue
        speeds = []
        for side in (seen.incumbent, seen.candidate):
            rows = [row for row in seen.rows if row.plan == side.plan.key]
            speeds.append(sum(row.samples or 0 for row in rows) / sum(row.seconds for row in rows))
        assert log(speeds[1] / speeds[0]) == pytest.approx(seen.pairs[0].log_ratio)
        checked += 1
    assert checked


def test_the_table_names_plans_and_processes(world: World) -> None:
    lines = list(csv.DictReader(io.StringIO(table(list(entries(world.run.directory.journal))))))
    assert set(COLUMNS) < set(lines[0])
    assert {line["plan"] for line in lines} >= {"baseline", "quick"}
    assert all(line["process"] and float(line["seconds"]) > 0 for line in lines)
    assert table([]) == ",".join(COLUMNS) + "\n"


# The fingerprint: changes with what is measured, and only with that.


def sources(folder: Path) -> Path:
    (folder / "package" / "deep").mkdir(parents=True)
    (folder / "train.py").write_text(
        "import os, numpy\nimport helper\nfrom package import part\nfrom package.deep import x\n"
    )
    (folder / "helper.py").write_text("import train\n")
    (folder / "unused.py").write_text("raise SystemExit\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "part.py").write_text("from .deep import x\nfrom . import other\n")
    (folder / "package" / "other.py").write_text("")
    (folder / "package" / "deep" / "__init__.py").write_text("x = 1\n")
    return folder / "train.py"


def test_all_that_a_module_imports_beside_it_counts_and_nothing_runs(tmp_path: Path) -> None:
    file = sources(tmp_path)
    assert sorted(source_hashes(file)) == [
        "helper.py",
        "package/__init__.py",
        "package/deep/__init__.py",
        "package/other.py",
        "package/part.py",
        "train.py",
    ]


def test_a_changed_helper_is_named(tmp_path: Path) -> None:
    file = sources(tmp_path)
    before = fingerprint("train.py:build", file)
    (tmp_path / "unused.py").write_text("changed")
    assert differences(before, fingerprint("train.py:build", file)) == []
    (tmp_path / "helper.py").write_text("import train  # changed\n")
    (line,) = differences(before, fingerprint("train.py:build", file))
    assert line.startswith("code sources helper.py: ")


def test_source_that_is_no_python_still_has_a_hash(tmp_path: Path) -> None:
    for number, text in enumerate(["def (", "\0", "import 1"]):
        (tmp_path / f"m{number}.py").write_text(text)
        assert list(source_hashes(tmp_path / f"m{number}.py")) == [f"m{number}.py"]
    assert source_hashes(tmp_path / "missing.py") == {}


def test_the_commit_is_that_of_the_workload(tmp_path: Path) -> None:
    assert git_commit(tmp_path / "nowhere") is None
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *command], check=True)
    commit = git_commit(tmp_path)
    assert commit is not None
    assert len(commit) == 40


nested = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=3), nested, max_size=4))
def test_a_document_differs_from_itself_in_nothing(document: dict) -> None:
    assert differences(document, document) == []


@given(st.dictionaries(st.text(max_size=3), st.integers(), min_size=1), st.data())
def test_every_changed_leaf_is_a_line(document: dict, data: st.DataObject) -> None:
    changed = data.draw(st.sets(st.sampled_from(sorted(document))))
    other = {name: value + (name in changed) for name, value in document.items()}
    assert len(differences(document, other)) == len(changed)
