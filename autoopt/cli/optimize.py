"""``autoopt optimize``: the whole loop."""

from __future__ import annotations

from typing import Any

import click

from autoopt.cli.output import stdout_kept
from autoopt.cli.parameters import optimize_options, read_options
from autoopt.options import KEYS


@click.command("optimize")
@click.argument("workload", metavar="SCRIPT|MODULE:ATTR", required=False)
@click.argument("words", metavar="[-- WORDS]", nargs=-1, type=click.UNPROCESSED)
@optimize_options(*KEYS)
def optimize_command(workload: str | None, words: tuple[str, ...], **given: Any) -> int:
    """Makes a training run reach its target faster, and proves it.

    A script is run as it is, with the words behind --, and the result is a patch to it:
    autoopt optimize train.py --budget 1h -- --epochs 10, or a whole command: -- python -m pkg.train.

    MODULE:ATTR names a function that returns an autoopt.Workload, a LightningModule with its data, or a
    transformers.Trainer: my_module:build, or a path such as examples/photos.py:build.

    Measures the baseline, finds the ceiling of every stage, tries what can pay, keeps what a paired comparison
    proves, and ends with a checked result in a run directory: report.html, result.json, plan.json,
    optimized_train.py. The same options may stand in [tool.autoopt] of pyproject.toml (budget = "2h"); the
    command line wins. Ctrl-C ends the search after the current trial and still writes the report; a second one
    stops at once, and `autoopt resume` goes on later.
    """
    options = read_options(given)
    from autoopt.running.checks import check_command
    from autoopt.script.command import read
    from autoopt.trial.start import begin_server

    chosen = read(workload, words)
    with stdout_kept():
        check_command(chosen, options)  # before torch is imported
    begin_server()
    from autoopt.api import optimize_run
    from autoopt.cli.finish import follow

    return follow(lambda listeners: optimize_run(chosen, options, listeners=listeners), options)
