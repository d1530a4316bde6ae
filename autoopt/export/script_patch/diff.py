"""Unified diffs that ``git apply`` takes: made here, put on and taken off by ``autoopt apply`` and ``revert``."""

from __future__ import annotations

import difflib


def diff_of(before: str, after: str, name: str) -> str:
    """The unified diff of one file; empty where nothing changed."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{name}", f"b/{name}"
    )
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
