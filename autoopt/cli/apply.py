"""``autoopt apply``: puts the patch of a run on the user's files."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.output import write_line


@click.command("apply")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--plan", type=click.Path(path_type=Path), metavar="FILE", help="This plan instead of what the run kept.")
def apply_command(run: Path, plan: Path | None) -> int:
    """Puts the patch of a run on the files that it was made from.

    RUN is a run directory or its result.json; with --plan also that of a profile.
    All of the patch or nothing: where a file is no longer as the run
    saw it, none is changed. Prints the files that were.
    """
    if plan is not None:
        from autoopt.running.patching import apply_plan

        for name in apply_plan(run, plan):
            write_line(name)
        return 0
    from autoopt.export.applying import apply_patch
    from autoopt.records.reading import read_result

    for name in apply_patch(read_result(run)):
        write_line(name)
    return 0
