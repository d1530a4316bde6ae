"""Commits that do nothing, or something, asked about one after another under one ledger."""

from __future__ import annotations

import subprocess
from pathlib import Path


def git(folder: Path | str, *words: str) -> str:
    """The output of a git command in a folder."""
    identity = ("-c", "user.name=autoopt", "-c", "user.email=autoopt@example.invalid")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout
