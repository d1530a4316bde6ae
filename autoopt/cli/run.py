"""``autoopt run``: the real training run of a script with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.parameters import optimize_options, plan_option, read_options, workload_arguments


@click.command("run", cls=Command)
@plan_option
@optimize_options("device", "seed", "strategies")
@workload_arguments("[-- COMMAND]", words="")
def run_command(plan: Path, workload: str | None, words: tuple[str, ...], **given: Any) -> int:
    """Train a script with a plan, without changing a file.

    \b
    Example:
      autoopt run --plan autoopt-runs/RUN/plan.json -- python train.py --epochs 90

    The exit code is the script's. Leave plan.json in its run directory: otherwise, or if the script has changed,
    autoopt first runs a few steps of the script to find the places to change.
    """
    options = read_options(given)
    from autoopt.records.reading import read_plan
    from autoopt.script.command import read

    chosen = read(workload, words)
    document = read_plan(plan)
    from autoopt.running.script_run import script_run

    return script_run(chosen, document, plan, options)
