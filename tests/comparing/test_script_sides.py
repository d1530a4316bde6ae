"""Scripts as sides: as they are, under a plan or a patch, of a run, and in a revision with its own modules."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from autoopt.comparing.sides import check_alike, check_files, python_path, side, workload_of
from autoopt.errors import AutooptError, EnvironmentLacks, UsageError, WorkloadError
from autoopt.script.command import parse
from benchmarks.sample import win
from tests.comparing.conftest import Git

COMMAND = "train.py --epochs 3"
SCRIPT = parse(COMMAND)


@pytest.fixture
def repository(git: Git) -> Path:
    """A script with a module beside it, in two commits, and data that git does not track."""
    here = Path.cwd()
    (here / "train.py").write_text("import src.net\nwidth = 1\n")
    (here / "src").mkdir()
    (here / "src" / "net.py").write_text("depth = 1\n")
    (here / ".gitignore").write_text("data/\n")
    git("add", ".")
    git("commit", "-qm", "old")
    (here / "train.py").write_text("import src.net\nwidth = 2\n")
    git("commit", "-qam", "new")
    (here / "data").mkdir()
    return here


def test_a_revision_of_a_script_runs_in_its_own_folder(repository: Path, git: Git) -> None:
    with side("HEAD~1", SCRIPT) as old, side(".", SCRIPT) as today:
        assert (old.kind, today.kind) == ("revision", "script")
        assert old.command == today.command == (sys.executable, "train.py", "--epochs", "3")
        assert "width = 1" in (old.folder / "train.py").read_text()
        assert old.sources.keys() == today.sources.keys() == {"train.py", "src/net.py"}
        assert old.sources["train.py"] != today.sources["train.py"]
        assert old.sources["src/net.py"] == today.sources["src/net.py"]
        script = old.script
        assert script is not None
        assert not script.own_seeds, "its seeds are drawn after both sides were fixed"
        assert str(repository) in script.folders, "what its links to data lead to is seen through the view, too"
        assert (old.folder / "data").is_symlink()
    assert git("worktree", "list").count("\n") == 0


def test_modules_of_today_are_not_a_revisions(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    with side("HEAD~1", SCRIPT) as old:
        assert python_path(sys.executable, repository, old.folder) == (str(old.folder / "src"),)
        assert old.script is not None
        assert old.script.python_path == (str(old.folder / "src"),)
        check_files([str(old.folder / "src" / "net.py"), os.__file__], old)
        with pytest.raises(AutooptError, match="imports src/net.py from today's files"):
            check_files([str(repository / "src" / "net.py")], old)


def test_a_plan_and_a_patch_are_of_the_script(repository: Path, git: Git) -> None:
    Path("plan.json").write_text('{"schema_version": 1, "changes": [{"strategy": "threads", "setting": {}}]}')
    Path("back.diff").write_text(git("diff", "HEAD", "HEAD~1") + "\n")
    with side("plan.json", SCRIPT) as planned, side("back.diff", SCRIPT) as patched, side(".", SCRIPT) as today:
        assert planned.plan.changes[0].strategy == "threads"
        assert planned.sources == today.sources
        assert patched.patched == {str(repository / "train.py"): "import src.net\nwidth = 1\n"}
        assert patched.sources != today.sources
        assert "width = 2" in Path("train.py").read_text(), "no file of the user's is touched"


def test_an_interpreter_of_its_own(repository: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o700)
    with side(".", SCRIPT, str(other)) as today:
        assert today.command is not None
        assert today.command[0] == str(other)
    with pytest.raises(EnvironmentLacks, match="is no Python interpreter"), side(".", SCRIPT, shutil.which("false")):
        pass
    with pytest.raises(EnvironmentLacks, match="there is no interpreter nowhere/python"):
        side(".", SCRIPT, "nowhere/python").__enter__()
    Path("job.py").write_text("def build(): ...\n")
    with pytest.raises(UsageError, match="is a function"), side("job.py:build", None, str(other)):
        pass


@pytest.mark.parametrize(
    ("given", "workload", "error", "said"),
    [
        (".", None, UsageError, "needs the workload that it is of"),
        ("nowhere.py", None, WorkloadError, "there is no script nowhere.py"),
        ("HEAD", "late.py", WorkloadError, "revision HEAD has no late.py"),
        ("wrong.diff", COMMAND, UsageError, "the patch does not fit the files"),
        ("empty.diff", COMMAND, UsageError, "the patch changes no file"),
        ("missing.diff", COMMAND, UsageError, "cannot read missing.diff"),
        ("wrong.diff", "job.py:build", UsageError, "a patch is of a script"),
    ],
)
def test_what_is_no_side_of_a_script_is_said(
    repository: Path, given: str, workload: str | None, error: type[Exception], said: str
) -> None:
    Path("late.py").write_text("today = True\n")
    Path("job.py").write_text("def build(): ...\n")
    Path("wrong.diff").write_text("--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n-nothing\n+something\n")
    Path("empty.diff").touch()
    with pytest.raises(error, match=said), side(given, parse(workload) if workload else None):
        pass


def test_a_script_is_not_compared_with_a_function(repository: Path) -> None:
    Path("job.py").write_text("def build(): ...\n")
    with (
        side(".", SCRIPT) as one,
        side("job.py:build", None) as other,
        pytest.raises(UsageError, match="train.py.* is a script|\\. is a script and job.py:build is a function"),
    ):
        check_alike(one, other)


def test_a_run_brings_its_workload_and_what_it_ended_with(repository: Path) -> None:
    result = win()
    script = result.model_copy(update={"workload": result.workload.model_copy(update={"spec": COMMAND})})
    Path("run").mkdir()
    Path("run", "result.json").write_text(script.model_dump_json())
    assert workload_of((".", "run"), None) == SCRIPT
    with side("run", SCRIPT) as found:
        assert found.kind == "run"
        assert found.plan == script.best.plan
        assert found.plan.changes
