"""``autoopt profile``: where the time goes, without trying anything."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import say, stdout_kept
from autoopt.cli.parameters import chosen, optimize_options, read_options, workload_arguments
from autoopt.options import parse_choices

TOOLS = ("torch", "cprofile", "lines", "memory")


@click.command("profile", cls=Command)
@workload_arguments()
@click.option("--with", "tools", multiple=True, metavar="NAMES", help=f"Profilers to run: {', '.join(TOOLS)}.")
@click.option("--watch", is_flag=True, help="Train to the end or the budget; name why steps grow slower.")
@optimize_options(
    "budget", "device", "memory-limit", "nproc", "seed", "only", "skip", "strategies", "allow", "metric", "out", "json",
    "quiet", "open",
)  # fmt: skip
def profile_command(
    workload: str | None, words: tuple[str, ...], tools: tuple[str, ...], watch: bool, **given: Any
) -> int:
    """Show where the time goes, and how fast each stage could be.

    \b
    Example:
      autoopt profile train.py --budget 5m -- --epochs 10

    Measures the stages of a training step and predicts the gain of each strategy. Tries no change.
    """
    options = read_options(given)
    named = parse_choices(tools, TOOLS) if tools else ()
    trained = chosen(workload, words, options)
    from autoopt.api import profile_run
    from autoopt.cli.finish import finish_profile
    from autoopt.profilers.tools import check_tools
    from autoopt_reports.live import PlainView, View

    check_tools(named)
    # a line for each thing that is known
    with View() if options.quiet else PlainView(sys.stderr, time.monotonic) as view, stdout_kept():
        profile = profile_run(
            trained,
            options,
            tools=named,
            watch=watch,
            on_profiled=lambda found: say("\n".join(found.summary())),
            announce=view,
        )
    return finish_profile(profile, options)
