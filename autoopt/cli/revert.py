"""``autoopt revert``: takes the patch of a run off the user's files."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.apply import change_files, of_a_run


@click.command("revert")
@of_a_run
def revert_command(run: Path, plan: Path | None) -> int:
    """Takes the patch of a run off the files that it was put on.

    RUN is a run directory or its result.json; with --plan also that of a profile.
    All of the patch or nothing: where a file is no longer as the run
    saw it, none is changed. Prints the files that were.
    """
    return change_files(run, plan, revert=True)
