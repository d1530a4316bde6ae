"""A strategy's card says that nothing has kept it, unless a recorded run or benchmark has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autoopt.testing.method_cards import builtin, method_card
from benchmarks.documents import RESULTS, load

NOT_KEPT = "No run and no benchmark has kept it so far."


def kept() -> Iterator[str]:
    """Strategies in the plans that runs of autoopt have kept, and those that a reported case was faster with."""
    runs: list[Any] = [entry["rivals"].get("autoopt", {}) for entry in load(RESULTS / "peers.json")["workloads"]]
    runs += [entry["optimize"] for entry in load(RESULTS / "adoption.json")["examples"].values() if "optimize" in entry]
    runs += [entry["autoopt"]["plan"] for entry in load(RESULTS / "oracle.json")["examples"].values()]
    for run in runs:
        yield from (change["strategy"] for change in run.get("plan", run.get("changes", ())))
    for case in load(RESULTS / "reports.json")["reports"].values():
        if (case.get("throughput") or {"low": 0.0})["low"] > 1.0:
            yield from (change["strategy"] for change in case["changes"])


def test_what_was_kept_does_not_say_otherwise() -> None:
    found = set(kept())
    assert {"workers", "threads", "amp"} <= found
    says_not = {strategy.name for strategy in builtin() if NOT_KEPT in method_card(strategy)[""]}
    assert says_not
    assert not found & says_not
