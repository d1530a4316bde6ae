"""``autoopt resume``: goes on with an interrupted run."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.parameters import optimize_options, read_options, run_argument
from autoopt.errors import AutooptError


@click.command("resume", cls=Command)
@run_argument
@click.option("--accept-changed", is_flag=True, help="Continue although code, environment or device changed.")
@optimize_options("json", "quiet", "open")
def resume_command(run: Path, accept_changed: bool, **given: object) -> int:
    """Continue an interrupted run.

    \b
    Example:
      autoopt resume autoopt-runs/RUN

    RUN is the run directory. Finished trials are not repeated, and the pause does not count against the budget.
    Trackers (--log) continue in the same tracker run.
    """
    options = read_options(given)
    from autoopt.storage.journal import read_journal
    from autoopt.storage.run_directory import RunDirectory

    journal = RunDirectory.existing(run).journal
    from autoopt.api import resume_run
    from autoopt.cli.finish import follow

    records: list[dict[str, Any]] = []
    with suppress(AutooptError):  # of a journal that cannot be read, resuming it says why
        records = read_journal(journal)
    options = replace(options, log=tuple(records[0].get("options", {}).get("log", ())) if records else ())
    return follow(lambda listeners: resume_run(run, accept_changed=accept_changed, listeners=listeners), options)
