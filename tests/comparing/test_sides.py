"""Sides of a comparison: what each is found to be, and that a revision is seen whole and leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from autoopt.comparing.ask import Ask
from autoopt.comparing.compare import Comparing, compare_sides
from autoopt.comparing.sides import check_files, side, workload_of
from autoopt.errors import EnvironmentLacks, UsageError, WorkloadError
from autoopt.loading.importing import parse as parts
from autoopt.options import Options
from autoopt.script.command import Build, parse
from sample import win
from tests.comparing.conftest import Git

COMMAND = "train.py --epochs 3"
SCRIPT = parse(COMMAND)
PLAN = '{"schema_version": 1, "changes": [{"strategy": "threads", "setting": {"threads": 1}}]}'


@pytest.fixture
def repository(git: Git) -> Path:
    """A script with a module beside it and a function, in two commits; data and a file that git does not track."""
    here = Path.cwd()
    for folder in ("src", "pkg"):
        (here / folder).mkdir()
    (here / "src" / "net.py").write_text("depth = 1\n")
    (here / "pkg" / "__init__.py").touch()
    (here / ".gitignore").write_text("data/\n")
    for number, name in enumerate(("old", "new"), 1):
        (here / "train.py").write_text(f"import src.net\nwidth = {number}\n")
        (here / "pkg" / "job.py").write_text(f"def build():\n    return '{name}'\n")
        git("add", ".")
        git("commit", "-qm", name)
    (here / "data").mkdir()
    (here / "data" / "samples.bin").write_bytes(b"samples")
    (here / "untracked.py").write_text("today = True\n")
    return here


@pytest.mark.parametrize("workload", ["pkg.job:build", "pkg/job.py:build"])
def test_a_revision_is_checked_out_beside_today_and_goes_again(repository: Path, git: Git, workload: str) -> None:
    before = git("status", "--porcelain")
    with side("HEAD~1", Build(workload)) as old:
        file = Path(parts(old.workload.spec)[0])
        assert "'old'" in file.read_text()
        assert not file.is_relative_to(repository)
        assert (old.folder / "data" / "samples.bin").read_bytes() == b"samples"
        assert not (old.folder / "untracked.py").exists(), "code of today is not that revision's"
        assert old.commit == git("rev-parse", "HEAD~1")
        assert str(repository) not in old.search_path
        with side(workload, None) as today:
            assert today.sources != old.sources
            assert today.kind == "build"
    assert not old.folder.exists()
    assert git("worktree", "list").count("\n") == 0
    assert git("status", "--porcelain") == before
    assert (repository / "data" / "samples.bin").exists()


def test_a_revision_of_a_script_runs_in_its_own_folder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repository / "src"))
    with side("HEAD~1", SCRIPT) as old, side(".", SCRIPT) as today:
        assert (old.kind, today.kind) == ("revision", "script")
        assert old.command == today.command == (sys.executable, "train.py", "--epochs", "3")
        assert "width = 1" in (old.folder / "train.py").read_text()
        assert old.sources.keys() == today.sources.keys() == {"train.py", "src/net.py"}
        assert old.sources["train.py"] != today.sources["train.py"]
        assert old.sources["src/net.py"] == today.sources["src/net.py"]
        script = old.script
        assert not script.own_seeds, "its seeds are drawn after both sides were fixed"
        assert str(repository) in script.folders, "what its links to data lead to is seen through the view, too"
        assert script.python_path == (str(old.folder / "src"),), "modules of today are not a revision's"
        check_files([str(old.folder / "src" / "net.py"), os.__file__], old)
        with pytest.raises(UsageError, match="imports src/net.py from today's files"):
            check_files([str(repository / "src" / "net.py")], old)


@pytest.mark.parametrize(
    ("command", "files"),
    [
        ("-m torch.distributed.run train.py", {"train.py", "src/net.py"}),
        ("-m src.net", {"src/net.py"}),
    ],
)
def test_a_module_is_fixed_by_its_files(repository: Path, command: str, files: set[str]) -> None:
    with side(".", parse(f"{sys.executable} {command}")) as today:
        assert today.sources.keys() == files


def test_a_plan_and_a_patch_are_of_the_workload(repository: Path, git: Git) -> None:
    Path("plan.json").write_text(PLAN)
    Path("back.diff").write_text(git("diff", "HEAD", "HEAD~1", "train.py") + "\n")
    with side("plan.json", Build("pkg.job:build")) as planned:
        assert (planned.kind, planned.workload) == ("plan", Build("pkg.job:build"))
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
        assert today.command[0] == str(other)
    for given, python, error, said in (
        (".", shutil.which("false"), EnvironmentLacks, "is no Python interpreter"),
        (".", "nowhere/python", EnvironmentLacks, "there is no interpreter nowhere/python"),
        ("pkg/job.py:build", str(other), UsageError, "is a function"),
    ):
        with pytest.raises(error, match=said), side(given, SCRIPT if given == "." else None, python):
            pass


@pytest.mark.parametrize(
    ("given", "workload", "error", "said"),
    [
        ("nothing", None, UsageError, "is no side of a comparison"),
        ("HEAD", None, UsageError, "HEAD needs the workload"),
        (".", None, UsageError, "needs the workload that it is of"),
        ("--upload-pack=x", "pkg.job:build", UsageError, "is no side of a comparison"),
        ("pkg.jobb.py:build", None, WorkloadError, "there is no file"),
        ("HEAD~1", "untracked.py:build", WorkloadError, "this revision has no untracked.py"),
        ("nowhere.py", None, WorkloadError, "there is no script nowhere.py"),
        ("HEAD", "untracked.py", WorkloadError, "revision HEAD has no untracked.py"),
        ("wrong.diff", COMMAND, UsageError, "the patch does not fit the files"),
        ("empty.diff", COMMAND, UsageError, "the patch changes no file"),
        ("missing.diff", COMMAND, UsageError, "cannot read missing.diff"),
        ("wrong.diff", "pkg/job.py:build", UsageError, "a patch is of a script"),
    ],
)
def test_what_is_no_side_is_said(
    repository: Path, given: str, workload: str | None, error: type[Exception], said: str
) -> None:
    Path("wrong.diff").write_text("--- a/train.py\n+++ b/train.py\n@@ -1,1 +1,1 @@\n-nothing\n+something\n")
    Path("empty.diff").touch()
    with pytest.raises(error, match=said), side(given, parse(workload) if workload else None):
        pass


def test_a_script_is_not_compared_with_a_function(repository: Path) -> None:
    with pytest.raises(UsageError, match=r"\. is a script and pkg/job.py:build is a function"):
        compare_sides(Ask(".", "pkg/job.py:build"), SCRIPT, Options())


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


def test_a_comparison_that_is_ended_takes_its_checkouts_out_again(
    repository: Path, git: Git, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled job of CI gets SIGTERM; its repository must not be left with worktrees that are gone.

    No side can have been made for the seed of both: it is drawn once both revisions are checked out.
    """
    found: list[int] = []

    def drawn(most: int) -> int:
        found.append(git("worktree", "list").count("\n"))
        return 7

    def cancelled(self: Comparing) -> None:
        assert {runner.base.seed for runner in self.trials.runners.values()} == {7}
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("autoopt.comparing.compare.secrets.randbelow", drawn)
    monkeypatch.setattr(Comparing, "run", cancelled)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        compare_sides(Ask("HEAD~1", "HEAD"), Build("pkg/job.py:build"), Options(budget_seconds=1.0))
    assert found == [2]
    assert git("worktree", "list").count("\n") == 0
    assert signal.getsignal(signal.SIGTERM) is before
