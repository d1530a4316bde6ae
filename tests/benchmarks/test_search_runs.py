"""Seconds until a gain, read from the journals of runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autoopt.storage.journal import read_journal
from benchmarks.search import minutes
from benchmarks.search.runs import first_look, kept, table, until_gains
from simulated import World, product, strategy


def proved(at: float, ratio: float) -> dict[str, Any]:
    return {"type": "event", "event": "Kept", "at": at, "data": {"speedup": {"throughput": {"value": ratio}}}}


def test_seconds_until_a_gain_are_those_of_its_proof(tmp_path: Path) -> None:
    outcome = World(tmp_path, strategy("good"), speed=product({"good": 1.2}), budget=240.0).go()
    assert outcome.best.plan.names() == ("good",)
    records = read_journal(tmp_path / "journal.jsonl")
    look = first_look(records)
    assert look is not None
    assert 0.0 < look < 120.0
    assert until_gains(kept([*records, proved(90.0, 1.2)])) == {1.1: 90.0, 1.3: None}
    assert until_gains(kept([proved(90.0, 1.2), proved(150.0, 1.15)])) == {1.1: 90.0, 1.3: 150.0}
    result = {
        "budget_seconds": 240.0,
        "best": {"plan": {"changes": [{"strategy": "good"}]}},
        "speedup": {"time_to_target": {"value": 1.2, "low": 1.1, "high": 1.3}, "end_to_end_verified": True},
        "decided": [{"strategy": "good", "verdict": "kept"}, {"strategy": "other", "verdict": None}],
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    cells = [cell.strip() for cell in table([tmp_path]).splitlines()[-1].split("|")[2:-1]]
    assert cells[0] == "240 s"
    assert cells[3] == "-", "no 30 %"
    assert cells[4:6] == ["1", "1"]
    assert cells[-2:] == ["1.20x [1.10, 1.30]", "yes"]


def test_the_table_tells_shares_errors_and_where_the_seconds_went() -> None:
    row = {"case": "one", "budget": 90.0, "share": 0.5, "useless": 1, "verified": True, "tried": 3, "seconds": 80.0}
    rows = [
        {**row, "spent": {"inspect": 9.0, "trainings": 4.0, "probe": 6.0}},
        {**row, "case": "nothing", "share": None, "useless": 0, "verified": None, "spent": {"inspect": 7.0}},
        {**row, "budget": 7200.0, "spent": {}},
    ]
    lines = minutes.table(rows)
    assert lines[2] == "| 1.5 min | 50 % | 1 of 2 | 1 of 1 | 3.0 | 8 s | 0 s | 0 s | 0 s | 0 s | 5 s | 0 s | 80 s |"
    assert lines[3].startswith("| 2 h | 50 % | 1 of 1 |")
    assert lines[5:] == ["| case | 1.5 min | 2 h |", "| --- | --- | --- |", "| one | 50 % | 50 % |"]
