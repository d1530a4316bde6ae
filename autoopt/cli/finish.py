"""What every command does that ends in a Result: follow it, render the report, print the result alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from autoopt.cli.codes import INTERRUPTED
from autoopt.cli.output import say, show, stdout_kept, use_color, write_json, write_line
from autoopt.errors import EnvironmentLacks
from autoopt.events import Listener
from autoopt.options import Options
from autoopt.records import Profile, Result, StopReason

REPORT_FILE = "report.html"


def follow(search: Callable[[list[Listener]], Result], options: Options, listeners: list[Listener]) -> int:
    """Runs a search under the live view, then writes its report and prints its result.

    Args:
        search: takes the listeners and returns the result; has written the run directory.
        options: ``json``, ``quiet`` and ``open`` are looked at.
        listeners: who else follows, such as trackers.

    Returns:
        The exit code: 130 where the user ended the search early, else 0.
    """
    with stdout_kept():
        if options.quiet:
            result = search(listeners)
        else:
            from autoopt_reports.live import make_view

            with make_view(sys.stderr) as view:
                result = search([view, *listeners])
    page = write_report(result)
    print_result(result, options.json, page)
    if options.open and page is not None:
        show(page)
    return INTERRUPTED if result.stop.reason is StopReason.INTERRUPTED else 0


def write_report(result: Result, page: Path | None = None) -> Path | None:
    """Renders report.html, by default into the run directory; None where there is no such directory.

    A page that cannot be written must not cost a result that took hours: that is said, and the run goes on.
    """
    if page is None:
        if result.reproduce.run_directory is None:
            return None
        page = Path(result.reproduce.run_directory) / REPORT_FILE
    try:
        render(result, page)
    except EnvironmentLacks as error:
        say(f"{error.message}; render it later with: autoopt report {page.parent}")
        return None
    return page


def render(result: Result, page: Path) -> None:
    """Writes the report.

    Raises:
        EnvironmentLacks: the page cannot be written there.
    """
    from autoopt_reports import html

    try:
        html.write(result, page)
    except OSError as error:
        raise EnvironmentLacks(f"cannot write {page}: {error.strerror or error}") from None


def print_result(result: Result, as_json: bool, page: Path | None) -> None:
    """The result alone on standard output: the document, or a summary and where the report is."""
    if as_json:
        write_json(result)
        return
    from rich.console import Console

    from autoopt_reports import console

    color = use_color(sys.stdout)
    console.summary(result, Console(file=sys.stdout, no_color=not color, highlight=False))
    if page is not None:
        write_line(f"report: {page}")


def print_profile(profile: Profile, as_json: bool) -> None:
    """A profile on standard output: the document, or a summary."""
    if as_json:
        write_json(profile)
        return
    from rich.console import Console

    from autoopt_reports import console

    color = use_color(sys.stdout)
    console.profile(profile, Console(file=sys.stdout, no_color=not color, highlight=False))
