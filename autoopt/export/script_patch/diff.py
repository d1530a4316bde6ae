"""Unified diffs that ``git apply`` takes: made here, put on and taken off by ``autoopt apply`` and ``revert``."""

from __future__ import annotations

import difflib


def diff_of(before: str | None, after: str, name: str) -> str:
    """The unified diff of one file; empty where nothing changed. ``before``: None where the file is added."""
    old, new = (before or "").splitlines(keepends=True), after.splitlines(keepends=True)
    lines = difflib.unified_diff(old, new, "/dev/null" if before is None else f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
