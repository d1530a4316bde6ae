"""Sequences of a script: what makes its batches, and the order of its samples, are changed at its loader's line."""

from __future__ import annotations

import pytest

from autoopt.records import Change, Plan
from autoopt.search.compare.arm import TrialArm
from tests.script.conftest import StartScript, sites_of


@pytest.mark.slow
def test_batches_and_their_order_are_changed_where_the_loader_is_made(start_script: StartScript) -> None:
    with start_script("padded.py", "100000") as process:
        sites = sites_of(process, steps=8)
    losses, printed = [], []
    for changes in ((), (("trim_padding", {"multiple": 8}),), (("length_grouping", {"pool": 4}),)):
        plan = Plan(changes=tuple(Change(strategy=name, setting=setting) for name, setting in changes))
        with start_script("padded.py", "100000", sites=sites, plan=plan) as process:
            losses.append(TrialArm(process, plan).block(0.0, 40, 0.0).losses)
            printed.append(process.tail())
    usual, trimmed, grouped = losses
    assert trimmed == pytest.approx(usual, rel=1e-5)
    assert "widths [64]" in printed[0]
    assert "widths [16, 24]" in printed[1] or "widths [24]" in printed[1]
    assert len(grouped) == len(usual)
    assert grouped != pytest.approx(usual, rel=1e-3)
