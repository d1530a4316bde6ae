"""Names that a client may use, and those it may not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoopt.errors import AutooptError, UsageError
from autoopt.options.pyproject import CEILING, find_config
from autoopt.toolserver.workspace import Workspace


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    root = tmp_path / "work"
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").touch()
    (root / "pkg" / "job.py").touch()
    (root / "plan.json").write_text("{}")
    (tmp_path / "secret.py").write_text("secret = True\n")
    (root / "link.py").symlink_to(tmp_path / "secret.py")
    return Workspace(root)


def test_what_lies_in_the_workspace_can_be_named(workspace: Workspace) -> None:
    assert workspace.workload("train.py", ["--epochs", "3"]) == ["train.py", "--", "--epochs", "3"]
    assert workspace.workload("train.py", []) == ["train.py"]
    assert workspace.workload("-m pkg.job", []) == ["--", sys.executable, "-m", "pkg.job"]
    assert workspace.workload("pkg/job.py:build", []) == ["pkg/job.py:build"]
    assert workspace.workload("pkg.job:build", []) == ["pkg.job:build"]
    assert workspace.workload("train.py", [f"--data={workspace.root}/data"])[-1].endswith("/data")
    for given in (".", "main", "HEAD~1", "feature/fast", "plan.json"):
        assert workspace.side(given) == given


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("../secret.py", []),
        ("/etc/passwd", []),
        ("link.py", []),
        ("../secret.py:build", []),
        ("link.py:build", []),
        ("secret:build", []),
        ("os:getcwd", []),
        ("-m os", []),
        ("-m ..secret", []),
        ("--version", []),
        ("python -c 1", []),
        ("nowhere.py", []),
        ("train.py", ["--data", "/etc/passwd"]),
        ("train.py", ["--data=../secret.py"]),
        ("train.py", ["~/data"]),
        ("train.py", ["data/../../secret.py"]),
    ],
)
def test_nothing_outside_is_run(workspace: Workspace, target: str, words: list[str]) -> None:
    with pytest.raises(AutooptError):
        workspace.workload(target, words)


@pytest.mark.parametrize(
    "given",
    [
        "/tmp/plan.json",
        "../plan.json",
        "python train.py",
        "--output=x",
        "../other",
        "link.py/../x.diff",
        "link.py",
        "os:x",
    ],
)
def test_nothing_outside_is_compared(workspace: Workspace, given: str) -> None:
    (workspace.root.parent / "plan.json").write_text("{}")
    (workspace.root.parent / "other").mkdir()
    with pytest.raises(AutooptError):
        workspace.side(given)


def test_runs_lie_in_the_workspace(workspace: Workspace, tmp_path: Path) -> None:
    for name in ("..", "/tmp", "~", "-x", "link.py", "no\nline"):
        with pytest.raises(UsageError):
            workspace.path(name)
    with pytest.raises(UsageError, match="there is no autoopt-runs/x"):
        workspace.existing("autoopt-runs/x")
    with pytest.raises(UsageError, match="there is no folder"):
        Workspace(tmp_path / "nowhere")


def test_configuration_above_the_workspace_is_not_read(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace.root.parent / "pyproject.toml").write_text('[tool.autoopt]\nstrategies = "secret:Strategy"\n')
    assert find_config(workspace.root / "pkg") is not None
    monkeypatch.setenv(CEILING, str(workspace.root))
    assert find_config(workspace.root / "pkg") is None
    (workspace.root / "pyproject.toml").write_text('[tool.autoopt]\nbudget = "5m"\n')
    assert find_config(workspace.root / "pkg") is not None
