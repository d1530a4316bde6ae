"""``autoopt apply``: puts the patch of a run on the user's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from autoopt.cli.output import write_line


def of_a_run(function: Callable[..., Any]) -> Callable[..., Any]:
    """The argument and the option of a command that puts a patch on files, or takes it off."""
    help_ = "This plan instead of what the run kept."
    function = click.option("--plan", type=click.Path(path_type=Path), metavar="FILE", help=help_)(function)
    return click.argument("run", type=click.Path(path_type=Path))(function)


@click.command("apply")
@of_a_run
def apply_command(run: Path, plan: Path | None) -> int:
    """Puts the patch of a run on the files that it was made from.

    RUN is a run directory or its result.json; with --plan also that of a profile.
    All of the patch or nothing: where a file is no longer as the run
    saw it, none is changed. Prints the files that were.
    """
    return change_files(run, plan, revert=False)


def change_files(run: Path, plan: Path | None, *, revert: bool) -> int:
    """Puts the patch of a run, or of a plan, on its files, or takes it off; prints the files that were changed."""
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
