"""``autoopt run``: the real training run of a script with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoopt.cli.parameters import optimize_options, read_options


@click.command("run")
@click.option("--plan", type=click.Path(path_type=Path), required=True, metavar="FILE", help="plan.json of a run.")
@optimize_options("device", "seed", "strategies")
@click.argument("workload", metavar="[-- COMMAND]", required=False)
@click.argument("words", metavar="", nargs=-1, type=click.UNPROCESSED)
def run_command(plan: Path, workload: str | None, words: tuple[str, ...], **given: Any) -> int:
    """Trains a script for real with a plan, and changes no file.

    The exit code is the script's: autoopt run --plan RUN/plan.json -- python train.py --epochs 90. Where the plan
    lies in the directory of a run on this script as it is now, its sites are known; else the script's first steps
    are watched once before.
    """
    options = read_options(given)
    from autoopt.plan import read_plan
    from autoopt.script.command import read

    chosen = read(workload, words)
    document = read_plan(plan)
    from autoopt.running.script_run import script_run

    return script_run(chosen, document, plan, options)
