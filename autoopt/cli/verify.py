"""``autoopt verify``: measures an exported result again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import DOES_NOT_HOLD, OWN_ERROR, answer, stdout_kept
from autoopt.cli.parameters import optimize_options, path_option, read_options, run_argument


@click.command("verify", cls=Command)
@run_argument
@path_option("--against", metavar="RUN", help="Compare with another run; measure nothing.")
@optimize_options("budget", "json", "quiet", budget="3m")
def verify_command(run: Path, against: Path | None, **given: Any) -> int:
    """Measure the result of a finished run again.

    \b
    Example:
      autoopt verify autoopt-runs/RUN --budget 10m

    For a script, whole runs of the untouched and the patched script alternate, as many pairs as --budget holds. For a
    build(), the exported script and the baseline train to the target if two trainings fit into half of --budget; then
    their throughput is compared.

    Exit code 1 means that a figure lies outside the reported interval, 5 that --against finds RUN worse. Each
    verification is stored in sessions.json. From two sessions on, each on a day of its own, autoopt predicts the
    speedup of the next one.
    """
    options = read_options(given)
    from autoopt.records.reading import read_result

    result = read_result(run)
    from autoopt.export.verify import verify_run

    with stdout_kept():
        outcome = verify_run(run, result, seconds=options.budget_seconds, against=against)
    answer(outcome, [outcome.detail], as_json=options.json)
    return 0 if outcome.holds else DOES_NOT_HOLD if against is not None else OWN_ERROR
