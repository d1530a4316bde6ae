"""``autoopt revert``: takes the patch of a run off the user's files."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.output import write_line


@click.command("revert")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--plan", type=click.Path(path_type=Path), metavar="FILE", help="This plan instead of what the run kept.")
def revert_command(run: Path, plan: Path | None) -> int:
    """Takes the patch of a run off the files that it was put on.

    RUN is a run directory or its result.json; with --plan also that of a profile.
    All of the patch or nothing: where a file is no longer as the run
    saw it, none is changed. Prints the files that were.
    """
    if plan is not None:
        from autoopt.running.patching import revert_plan

        for name in revert_plan(run, plan):
            write_line(name)
        return 0
    from autoopt.export.applying import apply_patch
    from autoopt.records.reading import read_result

    for name in apply_patch(read_result(run), revert=True):
        write_line(name)
    return 0
