"""``autoopt verify``: measures an exported result again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoopt.cli.codes import DOES_NOT_HOLD, OWN_ERROR
from autoopt.cli.output import stdout_kept, write_json, write_line
from autoopt.cli.parameters import optimize_options, read_options


@click.command("verify")
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--against", type=click.Path(path_type=Path), metavar="RUN", help="Compare with another run, without measuring."
)
@optimize_options("budget", "json", "quiet", budget="Wall-clock time of the measurement: 10m, 90s, 1h.  [default: 3m]")
def verify_command(run: Path, against: Path | None, **given: Any) -> int:
    """Measures the result of a run again, end to end.

    RUN is the run directory. Of a script, whole runs of the untouched and the patched script are interleaved, as many
    pairs as --budget holds. Of a build(), the exported script and the baseline are trained to the target in turns,
    where a pair of trainings fits half of --budget, then compared in throughput. Exits with 1 where a
    figure falls outside the reported interval, and with 5 where --against finds the run worse.
    Each verification is noted in sessions.json; on another day it is a session of its own, and from two sessions on
    the speedup of the next one is predicted.
    """
    options = read_options(given)
    from autoopt.records.reading import read_result

    result = read_result(run)
    from autoopt.export.verify import verify_run

    with stdout_kept():
        asked = options.budget_seconds if given.get("budget") else None
        outcome = verify_run(run, result, options, seconds=asked, against=against)
    if options.json:
        write_json(outcome)
    else:
        write_line(outcome.detail)
    return 0 if outcome.holds else DOES_NOT_HOLD if against is not None else OWN_ERROR
