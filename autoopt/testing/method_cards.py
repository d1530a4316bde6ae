"""``python -m autoopt.testing.method_cards``: docs/reference/strategies.md, from docstrings.

A method card is the docstring of a strategy's class: a summary, then the headings of ``HEADINGS``, each followed by a
colon and its text; lines that go on are indented.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable

from autoopt.registry import OURS, load_strategies
from autoopt.strategy import STAGES, Strategy

HEADINGS = ("What it does", "When it helps", "When it does not", "What it costs", "Source")
INTRODUCTION = """\
# The strategies

In the order in which they are tried. Each file under `strategies/` holds one, with its method card; this page is made
of the cards by `make docs`.
"""
_HEADING = re.compile(rf"^({'|'.join(HEADINGS)}):\s*", re.M)


def method_card(strategy: Strategy) -> dict[str, str]:
    """The summary (under ``""``) and the text under each heading.

    Raises:
        ValueError: the docstring lacks a heading, or has them in another order.
    """
    text = inspect.getdoc(type(strategy)) or ""
    summary, *parts = _HEADING.split(text)
    if tuple(parts[::2]) != HEADINGS:
        raise ValueError(
            f"the docstring of {type(strategy).__name__} must have the headings {', '.join(HEADINGS)}, in this order; "
            f"it has {', '.join(parts[::2]) or 'none'}"
        )
    return {"": summary.strip(), **{heading: body.strip() for heading, body in zip(*[iter(parts)] * 2, strict=True)}}


def page(strategies: Iterable[Strategy]) -> str:
    """The page of all strategies, as Markdown."""
    return INTRODUCTION + "".join(_section(strategy) for strategy in strategies)


def _section(strategy: Strategy) -> str:
    card = method_card(strategy)
    summary = " ".join(card.pop("").split())
    stages = ", ".join(stage for stage in STAGES if stage in strategy.stages)
    indented = {heading: "\n  ".join(line.strip() for line in text.splitlines()) for heading, text in card.items()}
    points = "\n".join(f"* **{heading}**: {text}" for heading, text in indented.items())
    about = f"{summary} Risk class `{strategy.risk}`; stages: {stages}."
    return f"\n## {strategy.name}\n\n{about}\n\n{points}\n"


def shipped() -> list[Strategy]:
    """The strategies that come with autoopt, built-in or by entry points, in their order."""
    strategies = load_strategies().values()
    return [strategy for strategy in strategies if type(strategy).__module__.partition(".")[0] in OURS]


if __name__ == "__main__":
    sys.stdout.write(page(shipped()))
