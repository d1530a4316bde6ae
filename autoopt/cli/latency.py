"""``autoopt latency``: a trained model within a latency, and its acceptance test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from autoopt.cli.group import Command
from autoopt.cli.output import DOES_NOT_HOLD, answer, progress, show, stdout_kept
from autoopt.cli.parameters import optimize_options, path_option, read_options
from autoopt.errors import UsageError
from autoopt.latency.options import Serve, parse_latency, parse_shares, pattern
from autoopt.options.parsers import parse_list, parse_percent, parse_whole

WANTED = "a whole number from 1 to 256 is wanted"
T = TypeVar("T")


@click.command("latency", cls=Command)
@click.argument("workload", metavar="MODULE:ATTR")
@click.option(
    "--p95", metavar="TIME", help="Limit of the 95th percentile: 80ms, 1.5s, 900us. Exit code 5 unless shown."
)
@click.option("--max-drop", metavar="PERCENT", default="1%", help="Accepted loss of the metric.  [default: 1%]")
@click.option(
    "--clients", metavar="NUMBER", default="1", help="Clients that send requests at the same time.  [default: 1]"
)
@path_option("--checkpoint", help="Trained weights.")
@click.option("--batch", metavar="SHARES", default="1", help="Samples of a request: 1, or 1=80%,8=20%.  [default: 1]")
@click.option("--lengths", metavar="SHARES", help="Tokens of a request, cut to: 128, or 32=50%,128=50%.")
@click.option(
    "--student", "students", metavar="MODULE:ATTR", multiple=True, help="Another model to try; may be repeated."
)
@optimize_options("budget", "device", "seed", "price", "out", "json", "quiet", "open", budget="5m")
def latency_command(
    workload: str,
    p95: str | None,
    max_drop: str,
    clients: str,
    checkpoint: Path | None,
    batch: str,
    lengths: str | None,
    students: tuple[str, ...],
    **given: Any,
) -> int:
    """Make a trained model meet a latency limit at the least cost.

    \b
    Example:
      autoopt latency my_module:build --p95 80ms --checkpoint model.pt

    MODULE:ATTR is a workload as for `autoopt optimize`. Its validation data are the requests, and its evaluate
    function measures quality. Precisions, engines, layouts and threads are compared alternately. The winner is
    exported with an acceptance test that runs without autoopt.
    """
    options = read_options(given)
    serve = Serve(
        limit_seconds=None if p95 is None else _read("--p95", p95, parse_latency),
        max_drop=_read("--max-drop", max_drop, lambda text: parse_percent(text, most=1.0)),
        clients=_read("--clients", clients, lambda text: parse_whole(text, 1, 256, WANTED, "such as 4")),
        weights=str(checkpoint.absolute()) if checkpoint else "",
        sizes=pattern(_read("--batch", batch, parse_shares)),
        lengths=pattern(_read("--lengths", lengths, parse_shares)) if lengths is not None else (None,),
        students=parse_list(list(students)) if students else (),
    )
    if ":" not in workload:
        hint = "autoopt latency my_module:build, or examples/photos.py:build"
        raise UsageError(f"{workload} names no function that builds the model", hint=hint)
    if checkpoint is not None and not checkpoint.is_file():
        raise UsageError(f"--checkpoint {checkpoint}: there is no such file", hint="such as runs/train/checkpoint.pt")
    from autoopt.latency.search import serve_within
    from autoopt_reports import html
    from autoopt_reports import latency as reported

    with stdout_kept():
        found, directory = serve_within(workload, serve, options, say=progress(options))
        page = html.write_text(reported.page(found), directory.path / "latency.html")
    answer(found, [*reported.summary(found), f"page: {page}"], as_json=options.json)
    if options.open:
        show(page)
    failed = found.acceptance is not None and found.acceptance.exit_code != 0
    return DOES_NOT_HOLD if found.holds in ("no", "undecided") or failed else 0


def _read(option: str, text: str, parser: Callable[[str], T]) -> T:
    try:
        return parser(text)
    except UsageError as error:
        raise UsageError(f"{option} {text}: {error.message}", hint=error.hint) from None
