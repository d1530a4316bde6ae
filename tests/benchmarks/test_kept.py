"""A strategy's card says that nothing has kept it, unless a recorded run or benchmark has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoopt.testing.method_cards import method_card, shipped
from benchmarks.documents import RESULTS, load

NOT_KEPT = "No run and no benchmark has kept it so far."


def planned(document: Any) -> Iterator[str]:
    """Strategies in the plans of a document, and in the changes that were measured as an answer."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        if key in ("plan", "changes") and isinstance(value, list):
            yield from (change["strategy"] for change in value if isinstance(change, dict) and "strategy" in change)
        elif key != "trials":
            yield from planned(value)


def test_what_was_kept_does_not_say_otherwise() -> None:
    found = {name for file in RESULTS.glob("*.json") for name in planned(load(file))}
    assert {"workers", "threads", "amp"} <= found
    says_not = {strategy.name for strategy in shipped() if NOT_KEPT in method_card(strategy)[""]}
    assert says_not
    assert not found & says_not
