"""``autoopt report``: renders the report again, from result.json alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoopt.cli.group import Command
from autoopt.cli.output import show, write_file, write_json, write_line
from autoopt.cli.parameters import path_option, run_argument
from autoopt.errors import UsageError
from autoopt.records.writing import writing

if TYPE_CHECKING:
    from autoopt.records import Result

AGAINST_FILE = "against.html"


@click.command("report", cls=Command)
@run_argument
@path_option("--out", help="The page, or the card without its ending.  [default: RUN/report.html]")
@path_option("--against", metavar="RUN", help="Write a page with both runs instead.")
@click.option("--card", is_flag=True, help="Write a card for a README instead: RUN/card.svg and RUN/card.png.")
@click.option("--json", "as_json", is_flag=True, help="Print result.json instead of rendering the page.")
@click.option("--open", "open_", is_flag=True, help="Open the report in the browser.")
def report_command(run: Path, out: Path | None, against: Path | None, card: bool, as_json: bool, open_: bool) -> int:
    """Render the report of a run again.

    \b
    Example:
      autoopt report autoopt-runs/RUN --open

    RUN is a run directory or its result.json. Needs neither torch nor your code. Prints the path of the page.
    """
    from autoopt.records.reading import read_result

    if sum((card, against is not None, as_json)) > 1:
        raise UsageError("--card, --against and --json are three answers", hint="ask for one of them")
    result = read_result(run)
    if as_json:
        write_json(result)
        return 0
    folder = run if run.is_dir() else run.parent
    if card:
        for path in _cards(result, out or folder / "card"):
            write_line(str(path))
        return 0
    from autoopt_reports import html

    page = out or folder / (AGAINST_FILE if against else html.REPORT_FILE)
    with writing(page):
        text = _side_by_side(result, run, against) if against else html.render(result)
        page = html.write_text(text, page)
    write_line(str(page))
    if open_:
        show(page)
    return 0


def _side_by_side(result: Result, run: Path, against: Path) -> str:
    """The page of both runs."""
    from autoopt.export.verify import compare_runs
    from autoopt.records.reading import read_result
    from autoopt_reports import against as two_runs

    old = read_result(against)
    try:
        verdict = compare_runs(result, old, str(against)).detail
    except UsageError as error:  # another workload or machine: side by side all the same, and no verdict
        verdict = error.message
    return two_runs.page(result, old, verdict=verdict, names=(str(against), str(run)))


def _cards(result: Result, stem: Path) -> Iterator[Path]:
    """Writes both cards; without Pillow the first alone, and says so.

    Raises:
        EnvironmentLacks: Pillow is not installed, or a file cannot be written.
    """
    from autoopt_reports import card

    drawn, painted = stem.with_suffix(".svg"), stem.with_suffix(".png")
    write_file(drawn, card.svg(result))
    yield drawn
    picture = card.png(result)
    with writing(painted):
        painted.write_bytes(picture)
    yield painted
