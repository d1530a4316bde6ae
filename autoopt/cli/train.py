"""``autoopt train``: the real training run with a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoopt.cli.output import stdout_kept, write_json
from autoopt.cli.parameters import optimize_options, read_options
from autoopt.options import refuse_unfinished


@click.command("train")
@click.argument("workload", metavar="MODULE:ATTR")
@click.option("--plan", type=click.Path(path_type=Path), required=True, metavar="FILE", help="plan.json of a run.")
@optimize_options("target", "device", "seed", "strategies", "price", "log", "out", "json", "quiet")
def train_command(workload: str, plan: Path, **given: Any) -> int:
    """Trains for real with a plan, with checkpoints and resume.

    Ends at the target. Ctrl-C leaves a checkpoint behind; the same command goes on from it.
    """
    options = read_options(given)
    refuse_unfinished(options)
    from autoopt.plan import read_plan

    document = read_plan(plan)
    from autoopt.train import train_run

    with stdout_kept():
        outcome = train_run(workload, document, options)
    write_json(outcome)
    return 0
