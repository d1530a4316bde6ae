"""``autoopt report``: renders the report again, from result.json alone."""

from __future__ import annotations

from pathlib import Path

import click

from autoopt.cli.output import show, write_json, write_line


@click.command("report")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="The page.  [default: RUN/report.html]")
@click.option("--json", "as_json", is_flag=True, help="Print the result document instead of rendering the page.")
@click.option("--open", "open_", is_flag=True, help="Show the report in the browser.")
def report_command(run: Path, out: Path | None, as_json: bool, open_: bool) -> int:
    """Renders the report of a run again and prints where it is.

    RUN is a run directory or its result.json. Needs neither torch nor the code that was optimized.
    """
    from autoopt.cli.finish import REPORT_FILE, write_report
    from autoopt.records.reading import read_result

    result = read_result(run)
    if as_json:
        write_json(result)
        return 0
    page = out or (run if run.is_dir() else run.parent) / REPORT_FILE
    write_report(result, page)
    write_line(str(page))
    if open_:
        show(page)
    return 0
