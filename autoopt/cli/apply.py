"""``autoopt apply`` and ``autoopt revert``: the patch of a run on the user's files."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.group import Command
from autoopt.cli.output import write_line
from autoopt.cli.parameters import path_option, run_argument

chosen_plan = path_option("--plan", help="This plan instead of the one that the run kept.")


@click.command("apply", cls=Command)
@run_argument
@chosen_plan
def apply_command(run: Path, plan: Path | None) -> int:
    """Apply the patch of a run to your files.

    \b
    Example:
      autoopt apply autoopt-runs/RUN

    RUN is a run directory or its result.json; with --plan, also the directory of a profile. All hunks are applied, or
    none if a file has changed since the run. Prints the changed files.
    """
    return _change_files(run, plan, revert=False)


@click.command("revert", cls=Command)
@run_argument
@chosen_plan
def revert_command(run: Path, plan: Path | None) -> int:
    """Remove the patch of a run from your files.

    \b
    Example:
      autoopt revert autoopt-runs/RUN

    RUN is a run directory or its result.json; with --plan, also the directory of a profile. All hunks are removed, or
    none if a file has changed since. Prints the changed files.
    """
    return _change_files(run, plan, revert=True)


def _change_files(run: Path, plan: Path | None, *, revert: bool) -> int:
    """Applies or removes the patch of a run or a plan; prints the changed files."""
    from autoopt.export.applying import apply_patch
    from autoopt.records.reading import read_result
    from autoopt.running.patching import apply_plan, revert_plan

    if plan is None:
        changed = apply_patch(read_result(run), revert=revert)
    else:
        changed = revert_plan(run, plan) if revert else apply_plan(run, plan)
    for name in changed:
        write_line(name)
    return 0
