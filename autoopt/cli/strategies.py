"""``autoopt strategies``: what there is to try."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from autoopt.cli.group import Command
from autoopt.cli.output import answer, say, stdout_kept
from autoopt.cli.parameters import optimize_options, read_options


@click.command("strategies", cls=Command)
@optimize_options("strategies", "json")
def strategies_command(**given: Any) -> int:
    """List the strategies in the order in which they are tried.

    \b
    Example:
      autoopt strategies --strategies my_pkg.my_mod:MyStrategy

    Columns: name, risk class, the stages that it can shorten, and where it comes from.
    """
    options = read_options(given)
    from autoopt.registry import load_strategies

    with stdout_kept():
        registry = load_strategies(options.strategies)
    for warning in registry.warnings:
        say(f"warning: {warning}")
    rows = [
        {
            "name": source.strategy.name,
            "title": source.strategy.title or source.strategy.name,
            "risk": str(source.strategy.risk),
            "stages": sorted(source.strategy.stages),
            "after": sorted(source.strategy.after),
            "origin": source.origin,
        }
        for source in registry.sources
    ]
    answer(rows, _table(rows), as_json=options.json)
    return 0


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    from autoopt_reports.terminal import listed

    cells = [("", "strategy", "risk", "from", "stages")]
    for index, row in enumerate(rows, 1):
        origin = row["origin"].removesuffix(f" {row['name']}")  # an entry point of the same name
        cells.append((str(index), row["name"], row["risk"], origin, listed(row["stages"]) or "-"))
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    for each in cells:
        number, *rest = (text.ljust(width) for text, width in zip(each, widths, strict=True))
        yield "  ".join([number.strip().rjust(widths[0]), *rest]).rstrip()
