"""The first diagnosis of a script: what may pay, by the first look, before anything is compared."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoopt.records import Sites
from autoopt.registry import load_strategies
from autoopt.search.first_process import opportunities
from autoopt.search.planner import Choice
from autoopt.testing.strategies import sample_case

REGISTRY = load_strategies(())
PLACE = {"file": "train.py", "line": 7, "end_line": 7, "call": "DataLoader"}
SHARES = {"data": 0.5, "forward": 0.1, "backward": 0.2, "optimizer": 0.002, "other": 0.198}


def found(choice: Choice, **sites: object) -> tuple[dict[str, float], tuple[str, ...]]:
    loader = {**PLACE, "kind": "loader_training"}
    seen = Sites.model_validate({"command": ("train.py",), "cwd": "/", "sites": (loader,), "shares": SHARES, **sites})
    case = replace(sample_case(), pipeline=None, sites=seen)
    told = opportunities(REGISTRY, case, choice, 1.01)
    assert list(told.at_most) == sorted(told.at_most, reverse=True)
    return {name: value for value, names in told.at_most for name in names}, told.unknown


def test_strategies_are_ranked_by_what_their_stages_leave_to_gain() -> None:
    ranked, unknown = found(Choice())
    assert ranked["workers"] == 2.0
    assert ranked["compile"] == pytest.approx(1 / 0.7)
    assert ranked["threads"] == pytest.approx(1 / 0.698), "lines of the script's own between stages are no operators"
    assert "fused_optimizer" not in ranked, "of 0.2 % of a step nothing can be gained"
    assert "batch_size" not in ranked, "a change of training is no matter of a step's seconds"
    assert ranked["prepared_samples"] == 2.0
    assert not {*ranked} & {*unknown}


def test_what_the_user_left_out_or_no_setup_says_is_not_told() -> None:
    ranked, _ = found(Choice(only=("workers", "amp")))
    assert {*ranked} == {"workers", "amp"}
    ranked, unknown = found(Choice(), sites=())
    assert "workers" not in ranked, "the script has no DataLoader"
    assert "workers" not in unknown
