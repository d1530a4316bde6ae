"""``autoopt compare``: a verdict on two commands, functions, plans, patches or revisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import DOES_NOT_HOLD, answer, progress, stdout_kept, write_file
from autoopt.cli.parameters import optimize_options, path_option, read_options, workload_arguments
from autoopt.errors import UsageError


@click.command("compare", cls=Command)
@workload_arguments("[SCRIPT|MODULE:ATTR]")
@click.option("--baseline", metavar="SIDE", default=".", help="What to compare with.  [default: .]")
@click.option("--candidate", metavar="SIDE", default=".", help="What may be faster.  [default: .]")
@click.option("--baseline-python", metavar="FILE", help="Python interpreter of the baseline's script.")
@click.option("--candidate-python", metavar="FILE", help="Python interpreter of the candidate's script.")
@click.option(
    "--require",
    metavar="WHAT",
    help="faster, not-slower, or not-slower=3% (at most 3 % slower). Exit code 5 unless shown.",
)
@path_option("--ledger", help="Record of all comparisons, which share an error rate of 5 %. Needed by --require.")
@path_option("--html", help="Also write a web page.")
@path_option("--markdown", help="Also write a table for a comment.")
@optimize_options("budget", "metric", "device", "strategies", "json", "quiet", budget="5m")
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
    """Compare two versions of a training: speed and quality.

    \b
    Examples:
      autoopt compare --baseline main -- python train.py --epochs 10
      autoopt compare --baseline main --candidate HEAD my_module:build

    \b
    Each SIDE is one of:
      .                          your files as they are, committed or not
      main, HEAD~1, v1.2         a git revision
      plan.json                  a plan
      change.diff                a patch of the script
      autoopt-runs/RUN           the result of a run
      "python train.py --amp"    a command
      my_module:build            a function

    The script after --, or MODULE:ATTR, is what revisions, plans, patches and "." belong to.

    Both sides run alternately. Speed is timed outside of the candidate's process. For quality, both sides train from a
    seed that neither knows, and their weights are compared. The exit code is 0, or 5 if --require is not shown;
    "undecided" never passes.
    """
    options = read_options(given, {})  # pyproject.toml may be the candidate's
    from autoopt.comparing.ask import TODAY, Ask, requirement_of
    from autoopt.script.command import read

    ask = Ask(
        baseline, candidate, requirement_of(require) if require is not None else None, ledger,
        baseline_python=baseline_python, candidate_python=candidate_python,
    )  # fmt: skip
    if ask.requirement is not None and ledger is None:
        raise UsageError(
            f"--require {require} needs --ledger FILE, which counts all asks: who asks often passes by chance",
            hint="name a file that outlives the job and that candidates cannot write, such as --ledger ~/asks.jsonl",
        )
    chosen = read(workload, words) if workload is not None else None
    if baseline == candidate == TODAY and baseline_python is candidate_python is None:
        raise UsageError(
            "the files as they are on both sides: name a --baseline or a --candidate",
            hint="such as autoopt compare --baseline HEAD -- python train.py, for what was changed since",
        )
    from autoopt.trial.start import begin_server

    begin_server()
    from autoopt.comparing.compare import compare_sides

    with stdout_kept():
        found = compare_sides(ask, chosen, options, say=progress(options))
    command = ask.command(chosen, metric=given["metric"], budget=given["budget"])
    found = found.model_copy(update={"command": command})
    from autoopt_reports import compared

    for path, text in ((html, compared.page), (markdown, compared.markdown)):
        if path is not None:
            write_file(path, text(found))
    answer(found, compared.summary(found), as_json=options.json)
    return DOES_NOT_HOLD if found.requirement is not None and not found.requirement.holds else 0
