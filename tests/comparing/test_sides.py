"""Builds, plans and revisions: what each is found to be, and that a revision is seen whole and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from autoopt.comparing.compare import Comparing, compare_sides
from autoopt.comparing.sides import side
from autoopt.errors import UsageError, WorkloadError
from autoopt.loading.importing import parse
from autoopt.options import Options
from autoopt.script.command import Build


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits of a workload whose data git does not track."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "job.py").write_text("def build():\n    return 'old'\n")
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("data/\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "old")
    (tmp_path / "pkg" / "job.py").write_text("def build():\n    return 'new'\n")
    git(tmp_path, "commit", "-qam", "new")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "samples.bin").write_bytes(b"samples")
    (tmp_path / "untracked.py").write_text("today = True\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("workload", ["pkg.job:build", "pkg/job.py:build"])
def test_a_revision_is_checked_out_beside_today_and_goes_again(repository: Path, workload: str) -> None:
    before = git(repository, "status", "--porcelain")
    with side("HEAD~1", Build(workload)) as old:
        file = Path(parse(old.workload.spec)[0])
        assert "'old'" in file.read_text()
        assert not file.is_relative_to(repository)
        assert (old.folder / "data" / "samples.bin").read_bytes() == b"samples"
        assert not (old.folder / "untracked.py").exists(), "code of today is not that revision's"
        assert old.commit == git(repository, "rev-parse", "HEAD~1")
        assert str(repository) not in old.search_path
        with side(workload, None) as today:
            assert today.sources != old.sources
            assert today.kind == "build"
    assert not old.folder.exists()
    assert git(repository, "worktree", "list").count("\n") == 0
    assert git(repository, "status", "--porcelain") == before
    assert (repository / "data" / "samples.bin").exists()


def test_a_plan_is_of_a_workload(repository: Path) -> None:
    (repository / "plan.json").write_text(
        '{"schema_version": 1, "changes": [{"strategy": "threads", "setting": {"threads": 1}}]}'
    )
    with side("plan.json", Build("pkg.job:build")) as planned:
        assert (planned.kind, planned.workload) == ("plan", Build("pkg.job:build"))
        assert planned.plan.changes[0].strategy == "threads"


@pytest.mark.parametrize(
    ("given", "workload", "error", "said"),
    [
        ("nothing", None, UsageError, "is no side of a comparison"),
        ("HEAD", None, UsageError, "HEAD needs the workload"),
        ("--upload-pack=x", "pkg.job:build", UsageError, "is no side of a comparison"),
        ("pkg.jobb.py:build", None, WorkloadError, "there is no file"),
        ("HEAD~1", "untracked.py:build", WorkloadError, "this revision has no untracked.py"),
    ],
)
def test_what_is_no_side_is_said(
    repository: Path, given: str, workload: str | None, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said), side(given, Build(workload) if workload else None):
        pass


def test_a_comparison_that_is_ended_takes_its_checkouts_out_again(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled job of CI gets SIGTERM; its repository must not be left with worktrees that are gone."""

    def cancelled(self: Comparing, deadline: float) -> None:
        assert git(repository, "worktree", "list").count("\n") == 1
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Comparing, "run", cancelled)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        compare_sides("HEAD~1", ".", Build("pkg/job.py:build"), Options(budget_seconds=1.0))
    assert git(repository, "worktree", "list").count("\n") == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_seeds_are_drawn_after_both_sides_are_fixed(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No side can have been made for the seed, and both train from the same."""
    found: list[int] = []

    def drawn(most: int) -> int:
        found.append(git(repository, "worktree", "list").count("\n"))
        return 7

    def run(self: Comparing, deadline: float) -> None:
        assert {runner.base.seed for runner in self.runners.values()} == {7}
        raise KeyboardInterrupt

    monkeypatch.setattr("autoopt.comparing.compare.secrets.randbelow", drawn)
    monkeypatch.setattr(Comparing, "run", run)
    with pytest.raises(KeyboardInterrupt):
        compare_sides("HEAD", "HEAD~1", Build("pkg/job.py:build"), Options(budget_seconds=1.0))
    assert found == [2], "both revisions were checked out by then"
