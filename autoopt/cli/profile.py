"""``autoopt profile``: where the time goes, without trying anything."""

from __future__ import annotations

from typing import Any

import click

from autoopt.cli.parameters import optimize_options, read_options
from autoopt.options import refuse_unfinished


@click.command("profile")
@click.argument("workload", metavar="MODULE:ATTR")
@optimize_options("budget", "device", "seed", "only", "skip", "strategies", "allow", "out", "json", "quiet", "open")
def profile_command(workload: str, **given: Any) -> int:
    """Shows where the time goes and the ceiling of every stage.

    Benchmarks and simplifies only, and says what to expect from each strategy; nothing is changed or tried.
    --json prints the whole document.
    """
    options = read_options(given)
    refuse_unfinished(options)
    from autoopt.api import profile_run
    from autoopt.cli.finish import finish_profile
    from autoopt.cli.output import stdout_kept

    with stdout_kept():
        profile = profile_run(workload, options)
    return finish_profile(profile, options)
