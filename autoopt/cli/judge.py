"""``autoopt judge``: keep or discard, for a loop that edits training code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import DOES_NOT_HOLD, REFUSED, UNDECIDED, progress, stdout_kept, write_line
from autoopt.cli.parameters import optimize_options, path_option, read_options, workload_arguments
from autoopt.errors import UsageError

if TYPE_CHECKING:
    from autoopt.records import JsonDict
    from autoopt.records.comparing import Compared

CODES = {"keep": 0, "discard": DOES_NOT_HOLD, "undecided": UNDECIDED, "refused": REFUSED}


@click.command("judge", cls=Command)
@workload_arguments(required=True)
@click.option("--baseline", metavar="SIDE", default="HEAD", help="What to compare with.  [default: HEAD]")
@click.option("--candidate", metavar="SIDE", default=".", help="What may be faster.  [default: .]")
@click.option(
    "--seconds",
    type=click.FloatRange(min=5),
    default=60.0,
    metavar="SECONDS",
    help="Time until the answer.  [default: 60]",
)
@path_option("--session", help="Measurements of the baseline.  [default: in the user's cache]")
@path_option("--ledger", help="Record of all calls.  [default: next to the session]")
@click.option("--head", metavar="DIGEST", help="`head` of the previous answer; the ledger must match it.")
@optimize_options("metric", "device", "strategies", "quiet")
def judge_command(
    workload: str,
    words: tuple[str, ...],
    baseline: str,
    candidate: str,
    seconds: float,
    session: Path | None,
    ledger: Path | None,
    head: str | None,
    **given: Any,
) -> int:
    """Decide whether to keep an edit, as one line of JSON.

    \b
    Example:
      autoopt judge --baseline main -- python train.py --epochs 10

    Verdicts and exit codes: keep (0), discard (5: not faster, or it fails), undecided (6), refused (7: the measured
    speed is not credible).

    The first call measures the baseline; later calls use it again until code or machine change. All calls of a
    session share an error rate of 5 %, and each answer states what is left of it.
    """
    options = read_options({**given, "budget": f"{seconds:g}s"}, {})  # the candidate may have written pyproject.toml
    from autoopt.script.command import read

    chosen = read(workload, words)
    if baseline == candidate:
        raise UsageError(
            f"--baseline {baseline} is the candidate, too",
            hint="such as autoopt judge --baseline HEAD -- python train.py",
        )
    from autoopt.trial.start import begin_server

    begin_server()
    from autoopt.comparing import session as sessions
    from autoopt.comparing.ask import Ask
    from autoopt.comparing.compare import compare_sides
    from autoopt.comparing.ledger import LedgerLostError
    from autoopt.records.comparing import Requirement

    session = session or sessions.default_path(chosen.spec)
    ledger = ledger or session.with_suffix(".asks.jsonl")
    ledger.parent.mkdir(parents=True, exist_ok=True)
    ask = Ask(baseline, candidate, Requirement(kind="faster"), ledger, session, head)
    try:
        with stdout_kept():
            found = compare_sides(ask, chosen, options, say=progress(options))
        document = verdict(found)
    except LedgerLostError as lost:
        document = {"verdict": "refused", "reason": lost.message, "ledger": str(ledger)}
    write_line(json.dumps(document, allow_nan=False))
    return CODES[document["verdict"]]


def verdict(found: Compared) -> JsonDict:
    """The line of an answer."""
    keep, speed, entry = found.answer == "faster", found.throughput, found.ledger
    shown = found.answer == "undecided" and found.decision in ("reject", "harmful")  # that it is not faster
    unlike = found.answer in ("undecided", "refused") and not shown
    assert entry is not None
    return {
        "verdict": "keep" if keep else found.answer if unlike else "discard",
        "answer": found.answer,
        "speedup": [speed.value, speed.low, speed.high] if speed else None,
        "quality": found.learning.level,
        "reason": found.reason,
        "seconds": round(found.seconds, 1),
        "baseline": "known" if found.reused else "measured",
        "ask": entry.ask,
        "error": {"this_ask": entry.alpha, "left": entry.left, "total": entry.total},
        "head": entry.head,
    }
