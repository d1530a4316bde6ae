"""The command line: ``autoopt COMMAND``."""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; the console script's entry point.

    Args:
        arguments: the words after ``autoopt``; those of this process by default.
    """
    from autoopt.cli.entry import run

    return run(arguments)
