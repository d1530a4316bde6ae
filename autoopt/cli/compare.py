"""``autoopt compare``: a verdict on two commands, functions, plans, patches or revisions."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoopt.cli.codes import DOES_NOT_HOLD
from autoopt.cli.output import say, stdout_kept, write_json, write_line
from autoopt.cli.parameters import optimize_options, read_options
from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.options.parsers import parse_percent

if TYPE_CHECKING:
    from autoopt.records.comparing import Compared, Requirement

BUDGET = "5m"
TODAY = "."


@click.command("compare")
@click.argument("workload", metavar="[SCRIPT|MODULE:ATTR]", required=False)
@click.argument("words", metavar="[-- WORDS]", nargs=-1, type=click.UNPROCESSED)
@click.option("--baseline", metavar="SIDE", default=TODAY, help="See above.  [default: ., the files as they are]")
@click.option("--candidate", metavar="SIDE", default=TODAY, help="See above.  [default: ., the files as they are]")
@click.option("--baseline-python", metavar="FILE", help="The interpreter of a script's baseline: its own environment.")
@click.option("--candidate-python", metavar="FILE", help="The same of its candidate.")
@click.option("--require", metavar="WHAT", help="faster, or not-slower (=3%); exit code 5 where it does not hold.")
@click.option("--ledger", type=click.Path(path_type=Path), metavar="FILE", help="One alpha over all asks in this file.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write a page.")
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Also write a table for a comment.")
@optimize_options("budget", "device", "strategies", "json", "quiet")
def compare_command(
    workload: str | None,
    words: tuple[str, ...],
    baseline: str,
    candidate: str,
    baseline_python: str | None,
    candidate_python: str | None,
    require: str | None,
    ledger: Path | None,
    html: Path | None,
    markdown: Path | None,
    **given: Any,
) -> int:
    """Compares two sides: is one faster, and the same training.

    A SIDE is a git revision (main, HEAD~1), a plan.json, a patch (change.diff), a run directory, a command
    ('python train.py'), a function (my_module:build), or . for the files as they are. Revisions, plans and patches are
    of the script behind --, or of MODULE:ATTR: autoopt compare --baseline main -- python train.py --epochs 10. Time is
    taken outside the candidate's process; weights are compared after trainings from a seed that neither side knew.
    --budget is 5m unless it is given.
    """
    options = read_options({**given, "budget": given["budget"] or BUDGET})
    wanted = _requirement(require) if require is not None else None
    from autoopt.script.command import spec_of

    spec = spec_of(workload, words) if workload is not None else None
    pythons = (baseline_python, candidate_python)
    if baseline == candidate == TODAY and pythons == (None, None):
        raise UsageError(
            "the files as they are on both sides: name a --baseline or a --candidate",
            hint="such as autoopt compare --baseline HEAD -- python train.py, for what was changed since",
        )
    from autoopt.comparing.compare import compare_sides

    told: list[str] = []

    def progress(text: str) -> None:
        if not options.quiet and (not told or told[-1] != text):
            told.append(text)
            say(text)

    with stdout_kept():
        found = compare_sides(
            baseline, candidate, spec, options, requirement=wanted, ledger=ledger, pythons=pythons, say=progress
        )
    words_again = {
        "baseline": baseline,
        "candidate": candidate,
        "require": require,
        "budget": given["budget"] or BUDGET,
    }
    found = found.model_copy(update={"command": _command(words_again, spec)})
    _write(found, html, markdown)
    if options.json:
        write_json(found)
    else:
        from autoopt_reports.compared import summary

        for line in summary(found):
            write_line(line)
    return DOES_NOT_HOLD if found.requirement is not None and not found.requirement.holds else 0


def _command(given: dict[str, str | None], spec: str | None) -> str:
    """The command line that asks for the same; the seed is drawn anew."""
    from autoopt.script.command import said

    words = [f"--{name} {shlex.quote(value)}" for name, value in given.items() if value is not None]
    return " ".join(["autoopt compare", *words, *([said(spec)] if spec else [])])


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
