"""``autoopt compare``: a verdict on two builds, plans or revisions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoopt.cli.codes import DOES_NOT_HOLD
from autoopt.cli.output import say, stdout_kept, write_json, write_line
from autoopt.cli.parameters import optimize_options, read_options
from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.options import refuse_unfinished
from autoopt.options.parsers import parse_percent

if TYPE_CHECKING:
    from autoopt.records.comparing import Compared, Requirement

BUDGET = "5m"


@click.command("compare")
@click.argument("workload", metavar="[MODULE:ATTR]", required=False)
@click.option("--baseline", required=True, metavar="SIDE", help="A build, a plan.json, or a git revision.")
@click.option("--candidate", required=True, metavar="SIDE", help="The same; today's files are MODULE:ATTR.")
@click.option("--require", metavar="WHAT", help="faster, or not-slower (=3%); exit code 5 where it does not hold.")
@click.option("--ledger", type=click.Path(path_type=Path), metavar="FILE", help="One alpha over all asks in this file.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Also write a table for a comment.")
@optimize_options("budget", "device", "strategies", "json", "quiet")
def compare_command(
    workload: str | None,
    baseline: str,
    candidate: str,
    require: str | None,
    ledger: Path | None,
    html: Path | None,
    markdown: Path | None,
    **given: Any,
) -> int:
    """Compares two sides: is one faster, and the same training.

    A SIDE is a function (my_module:build), a plan (plan.json) or a git revision (main, HEAD~1); plans and revisions
    are of MODULE:ATTR. Time is taken outside the candidate's process; weights are compared after trainings from a
    seed that neither side knew. --budget is 5m unless it is given.
    """
    options = read_options({**given, "budget": given["budget"] or BUDGET})
    refuse_unfinished(options)
    wanted = _requirement(require) if require is not None else None
    from autoopt.comparing.compare import compare_sides

    told: list[str] = []

    def progress(text: str) -> None:
        if not options.quiet and (not told or told[-1] != text):
            told.append(text)
            say(text)

    with stdout_kept():
        found = compare_sides(baseline, candidate, workload, options, requirement=wanted, ledger=ledger, say=progress)
    _write(found, html, markdown)
    if options.json:
        write_json(found)
    else:
        from autoopt_reports.compared import summary

        for line in summary(found):
            write_line(line)
    return DOES_NOT_HOLD if found.requirement is not None and not found.requirement.holds else 0


def _requirement(text: str) -> Requirement:
    from autoopt.records.comparing import Requirement

    if text == "faster":
        return Requirement(kind="faster")
    match = re.fullmatch(r"not-slower(?:=(.+))?", text)
    if match is None:
        raise UsageError(f"--require {text}: no such requirement", hint="faster, or not-slower=3%")
    try:
        return Requirement(kind="not-slower", margin=parse_percent(match[1] or "0%", most=0.5))
    except UsageError as error:
        raise UsageError(f"--require {text}: {error.message}", hint="such as not-slower=3%") from None


def _write(found: Compared, html: Path | None, markdown: Path | None) -> None:
    from autoopt_reports import compared

    for path, text in ((html, compared.page), (markdown, compared.markdown)):
        if path is not None:
            try:
                path.write_text(text(found), encoding="utf-8")
            except OSError as error:
                raise EnvironmentLacks(f"cannot write {path}: {error.strerror or error}") from None
