"""``autoopt revert``: removes the patch of a run from the user's files."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.apply import change_files, of_a_run
from autoopt.cli.group import Command


@click.command("revert", cls=Command)
@of_a_run
def revert_command(run: Path, plan: Path | None) -> int:
    """Remove the patch of a run from your files.

    \b
    Example:
      autoopt revert autoopt-runs/RUN

    RUN is a run directory or its result.json; with --plan, also the directory of a profile. All hunks are removed, or
    none if a file has changed since. Prints the changed files.
    """
    return change_files(run, plan, revert=True)
