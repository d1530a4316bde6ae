"""A small repository of a user's, for what compares revisions of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """``git(*words)`` in a fresh repository, which is the present folder."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")

    def run(*words: str) -> str:
        done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run("init", "-q")
    return run
