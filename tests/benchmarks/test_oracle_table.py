"""What the table of the oracle race claims, by the intervals of its shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna", reason="a rival in the race")

from benchmarks.oracle import table
from benchmarks.oracle.state import from_document

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
    assert "**not shown**" in table.shown("digits", race_of(0.88, [AMP], 0.9))


def test_leaving_the_baseline_as_it_is_shows_nothing_where_a_sampler_found_more() -> None:
    assert "**not shown**" not in table.shown("digits", race_of(0.97, [], 0.99))
    assert "Optuna TPE found more" in table.shown("digits", race_of(0.97, [], 1.02))


def test_to_be_ahead_of_a_sampler_takes_an_interval_above_one() -> None:
    near = table.means({"digits": race_of(0.96, [AMP], 0.98)})["ahead"]["tpe"]
    far = table.means({"digits": race_of(0.96, [AMP], 0.7)})["ahead"]["tpe"]
    assert near["low"] < 1.0 < near["high"]
    assert far["low"] > 1.0


def test_another_revision_runs_on_the_lattice_that_a_document_has(tmp_path: Path) -> None:
    """Seconds of single readings that it lacks are shared out of their sum, which is told."""
    row = {"point": {"precision": "as is"}, "value": 9.0, "step_seconds": 0.1, "fixed_seconds": 1.0}
    slow = {**row, "point": {"precision": "amp"}, "fixed_seconds": 3.0}
    found = {"setup": {"at": 7.0}, "compile": {"fixed_seconds": 30.0}, "again": [{"round": 0}], "lattice": [row, slow]}
    document = {"examples": {"digits": {**found, "seconds": {"lattice": 10.0}, "autoopt": {"commit": "0"}}}}
    state = from_document(tmp_path / "new.jsonl", document, {"share": "new"})
    assert [reading["seconds"] for reading in state.of("digits", "lattice")] == [4.0, 6.0]
    setup = state.one("digits", "setup")
    assert setup is not None
    assert (setup["at"], setup["seconds_shared_out"], setup["rules"]) == (7.0, True, {"share": "new"})
    assert state.of("digits", "again")
    assert state.of("digits", "compile")
    assert not state.of("digits", "autoopt")
    measured = [{**one, "seconds": 5.0} for one in (row, slow)]
    document["examples"]["digits"]["lattice"] = measured
    kept = from_document(tmp_path / "kept.jsonl", document, {})
    assert [reading["seconds"] for reading in kept.of("digits", "lattice")] == [5.0, 5.0]
    assert "seconds_shared_out" not in (kept.one("digits", "setup") or {})
