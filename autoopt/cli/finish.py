"""The end of a command that makes a document: follow the run, render its page, print the result alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoopt.cli.output import INTERRUPTED, say, show, stdout_kept, write_json
from autoopt.events import Listener
from autoopt.options import Options
from autoopt.records import Profile, Result, StopReason
from autoopt.trackers import following
from autoopt_reports import console, html
from autoopt_reports.live import make_view


def follow(search: Callable[[list[Listener]], Result], options: Options) -> int:
    """Runs a search under the live view, then writes its report and prints its result.

    Args:
        search: takes the listeners and returns the result; has written the run directory.
        options: ``json``, ``quiet`` and ``open`` are examined.

    Returns:
        The exit code: 130 where the user ended the search early, else 0.
    """
    view = make_view(sys.stderr, quiet=options.quiet)
    with following(options.log) as trackers:
        with view, stdout_kept():  # in this order: what others print goes above the live frame, not through it
            result = search([view, *trackers])
        page = html.write_page(result, say)
        trackers.report = page
    _end(result, console.summary, page, options)
    return INTERRUPTED if result.stop.reason is StopReason.INTERRUPTED else 0


def finish_profile(profile: Profile, options: Options) -> int:
    """Writes the page of a profile where it has a directory, and prints the document or its summary."""
    page = html.write_page(profile, say)
    _end(profile, console.profile_summary, page, options)
    return 0


def _end(document: Any, summary: Callable[..., None], page: Path | None, options: Options) -> None:
    """Prints a document or its summary, and shows its page where that was asked for."""
    if options.json:
        write_json(document)
    else:
        summary(document, console.console_for(sys.stdout), report=page)
    if options.open and page is not None:
        show(page)
