"""``autoopt optimize``: the whole loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from autoopt.cli.engine import engine
from autoopt.cli.parameters import optimize_options, read_options
from autoopt.errors import UsageError
from autoopt.options import KEYS, Options

if TYPE_CHECKING:
    from autoopt.events import Listener


@click.command("optimize")
@click.argument("workload", metavar="MODULE:ATTR")
@optimize_options(*KEYS)
def optimize_command(workload: str, **given: Any) -> int:
    """Makes a training run reach its target faster, and proves it.

    MODULE:ATTR names a function that returns an autoopt.Workload, a LightningModule with its data, or a
    transformers.Trainer: my_module:build, or a path such as examples/photos.py:build.

    Measures the baseline, finds the ceiling of every stage, tries what can pay, keeps what a paired comparison
    proves, and ends with a checked result in a run directory: report.html, result.json, plan.json,
    optimized_train.py. The same options may stand in [tool.autoopt] of pyproject.toml (budget = "2h"); the
    command line wins. Ctrl-C ends the search after the current trial and still writes the report; a second one
    stops at once, and `autoopt resume` goes on later.
    """
    options = read_options(given)
    refuse_unfinished(options)
    from autoopt.cli.finish import follow

    trackers = make_trackers(options)
    optimize_run = engine("autoopt.api:optimize_run", "autoopt optimize")
    return follow(lambda listeners: optimize_run(workload, options, listeners=listeners), options, trackers)


def refuse_unfinished(options: Options) -> None:
    """What the contract has and this version has not.

    Raises:
        UsageError: one line that says so.
    """
    if options.executor != "local":
        raise UsageError(
            f"--executor {options.executor} is not part of this version of autoopt yet",
            hint="trials run on this machine with --executor local",
        )


def make_trackers(options: Options) -> list[Listener]:
    """Listeners for ``--log``.

    Raises:
        UsageError: this version has none.
        EnvironmentLacks: a tracker's package is not installed.
    """
    if not options.log:
        return []
    make = engine("autoopt.trackers:make_listeners", f"--log {','.join(options.log)}")
    return list(make(options.log))
