"""What the table of the oracle race claims, by the intervals of its shares."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("optuna", reason="a rival in the race")

from benchmarks.oracle import table

AMP = {"strategy": "amp", "setting": {"dtype": "bfloat16"}}


def race_of(low: float, changes: list[dict], sampler: float) -> dict[str, Any]:
    def share(value: float, low: float) -> dict[str, float]:
        return {"value": value, "low": low, "high": value**2 / low}

    race = {"autoopt": {"share": share(1.0, low), "plan": {"changes": changes}}}
    race |= {name: {"share": share(sampler, 0.9 * sampler), "plan": {"changes": [AMP]}} for name in ("tpe", "random")}
    return {"race": race, "seconds": {"autoopt": 10.0, "lattice": 100.0}}


def test_a_share_is_shown_by_the_lower_end_of_its_interval() -> None:
    assert "shown" in table.shown("digits", race_of(0.96, [AMP], 0.9))
    assert "**not shown**" not in table.shown("digits", race_of(0.96, [AMP], 0.9))
    assert "**not shown**" in table.shown("digits", race_of(0.90, [AMP], 0.9))


def test_leaving_the_baseline_as_it_is_shows_nothing_where_a_sampler_found_more() -> None:
    assert "**not shown**" not in table.shown("digits", race_of(0.97, [], 0.99))
    assert "Optuna TPE found more" in table.shown("digits", race_of(0.97, [], 1.02))


def test_to_be_ahead_of_a_sampler_takes_an_interval_above_one() -> None:
    near = table.means({"digits": race_of(0.96, [AMP], 0.98)})["ahead"]["tpe"]
    far = table.means({"digits": race_of(0.96, [AMP], 0.7)})["ahead"]["tpe"]
    assert near["low"] < 1.0 < near["high"]
    assert far["low"] > 1.0
