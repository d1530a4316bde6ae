"""The run directory: made or refused, and never holding half a file."""

from __future__ import annotations

import errno
import os
from datetime import datetime
from pathlib import Path

import pytest

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.records import writing
from autoopt.storage import run_directory
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory, compiler_cache_of

NOW = datetime(2026, 1, 31, 23, 59, 58)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("examples/photos.py:build", "photos-20260131-235958"),
        ("my.module:build", "my.module-20260131-235958"),
        ("/a b/we ird;$(x).py:build", "we_ird_x-20260131-235958"),
        ("...:build", "run-20260131-235958"),
        ("x" * 300 + ":build", "x" * 60 + "-20260131-235958"),
    ],
)
def test_the_name_tells_workload_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory.create(module, now=NOW)
    assert directory.path == tmp_path / "autoopt-runs" / name


def test_two_runs_within_a_second_get_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = {RunDirectory.create("a:b", now=NOW).path.name for _ in range(3)}
    assert paths == {"a-20260131-235958", "a-20260131-235958-2", "a-20260131-235958-3"}


@pytest.mark.parametrize("name", ["journal.jsonl", "result.json", "plan.json", "report.html"])
def test_a_directory_that_holds_a_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match="holds a run already") as caught:
        RunDirectory.create("a:b", tmp_path)
    assert "autoopt resume" in caught.value.hint


def test_a_directory_with_other_files_or_a_stillborn_journal_will_do(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "journal.jsonl").touch()
    Run.create(RunDirectory.create("a:b", tmp_path), {}, {}).close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_what_cannot_be_made_or_written_is_one_line_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the run directory") as caught:
        RunDirectory.create("a:b", tmp_path / "file" / "run")
    assert "--out" in caught.value.hint
    monkeypatch.setattr(run_directory.tempfile, "TemporaryFile", refuse)
    with pytest.raises(UsageError, match="Read-only file system"):
        RunDirectory.create("a:b", tmp_path / "run")


def test_a_file_is_replaced_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory.create("a:b", tmp_path)
    directory.write(directory.result, "old")
    monkeypatch.setattr(writing.os, "replace", lambda *_: (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")))
    with pytest.raises(EnvironmentLacks, match="cannot write"):
        directory.write(directory.result, "new")
    assert directory.result.read_text() == "old"
    assert list(tmp_path.glob(".result*")) == []


def test_nothing_private_is_left_behind(tmp_path: Path) -> None:
    directory = RunDirectory.create("a:b", tmp_path)
    (tmp_path / ".result.json.abc.part").write_text("half")
    with Run.create(directory, {}, {}) as run:
        run.finish("exhausted")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl"]


def test_a_result_survives_its_directory_and_is_readable_as_the_umask_says(tmp_path: Path) -> None:
    directory = RunDirectory.create("a:b", tmp_path / "run")
    (tmp_path / "run").rmdir()
    before = os.umask(0o022)
    try:
        directory.write(directory.result, "{}")
    finally:
        os.umask(before)
    assert directory.result.read_text() == "{}"
    assert directory.result.stat().st_mode & 0o777 == 0o644


def test_what_a_plan_s_run_has_compiled_is_found_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    directory = RunDirectory.create("a:b", tmp_path / "run")
    assert compiler_cache_of(directory.plan) == {}, "nothing was compiled"
    directory.forget_compiled()  # nothing was
    (directory.compiler_cache / "fxgraph").mkdir(parents=True)
    assert compiler_cache_of(directory.plan) == {"TORCHINDUCTOR_CACHE_DIR": str(directory.compiler_cache)}
    monkeypatch.chdir(directory.path)
    assert compiler_cache_of(Path("plan.json")) == {"TORCHINDUCTOR_CACHE_DIR": str(directory.compiler_cache)}
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert compiler_cache_of(directory.plan) == {}, "what the user has named stays"
    directory.forget_compiled()
    assert not directory.compiler_cache.exists()
