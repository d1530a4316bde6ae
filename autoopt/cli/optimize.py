"""``autoopt optimize``: the whole loop."""

from __future__ import annotations

from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.parameters import chosen, optimize_options, read_options, workload_arguments
from autoopt.options import OPTIONS


@click.command("optimize", cls=Command)
@workload_arguments()
@optimize_options(*OPTIONS)
def optimize_command(workload: str | None, words: tuple[str, ...], **given: Any) -> int:
    """Find changes that make a training run faster, and confirm them.

    \b
    Examples:
      autoopt optimize train.py --budget 1h -- --epochs 10
      autoopt optimize --budget 1h -- torchrun --nproc-per-node 4 train.py
      autoopt optimize my_module:build --budget 2h

    A script runs unchanged, with the arguments after --. Its result is a patch. MODULE:ATTR names a function that
    returns an autoopt.Workload, a LightningModule with its data, or a transformers.Trainer.

    The command measures the baseline, finds the bottleneck, tries changes, and keeps those that a paired comparison
    confirms. The run directory holds report.html, result.json, plan.json, and patch.diff or optimized_train.py.

    Ctrl-C ends the search after the current trial and writes the report. A second Ctrl-C stops at once; `autoopt
    resume` continues. The options may also stand in [tool.autoopt] of pyproject.toml; the command line wins.
    """
    options = read_options(given)
    trained = chosen(workload, words, options)
    from autoopt.api import optimize_run
    from autoopt.cli.finish import follow

    return follow(lambda listeners: optimize_run(trained, options, listeners=listeners), options)
