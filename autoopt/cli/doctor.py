"""``autoopt doctor``: the machine, and what would make measurements doubtful."""

from __future__ import annotations

from typing import Any

import click

from autoopt.cli.engine import engine
from autoopt.cli.output import stdout_kept, write_json, write_line
from autoopt.cli.parameters import optimize_options, read_options


@click.command("doctor")
@optimize_options("device", "json")
def doctor_command(**given: Any) -> int:
    """Shows the machine, and what makes measuring on it doubtful.

    Device, versions and peaks. The peaks are measured now, which takes some seconds.
    """
    options = read_options(given)
    measure = engine("autoopt.benchmark.environment:environment", "autoopt doctor")
    with stdout_kept():
        environment = measure(options.device)
    if options.json:
        write_json(environment)
    else:
        for name, value in environment.model_dump(mode="json").items():
            write_line(f"{name}: {value}")
    return 0
