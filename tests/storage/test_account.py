"""account.csv: the blocks of a run from its journal, from which its ratios can be computed again."""

from __future__ import annotations

import csv
import io
from math import log
from pathlib import Path

import pytest

from autoopt.search.compare.comparison import Comparison
from autoopt.storage.account import COLUMNS, entries, table
from simulated import World, product, strategy


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(
        tmp_path_factory.mktemp("run"),
        strategy("quick", switchable=True),
        strategy("other"),
        speed=product({"quick": 1.5, "other": 1.2}),
        budget=240.0,
    )
    made.outcome = made.go()
    return made


def test_each_comparison_of_the_run_is_in_the_account(world: World) -> None:
    state = world.outcome.state
    found = list(entries(world.run.directory.journal))
    measured: list[Comparison] = [*state.looks, *state.comparisons.values(), *state.ablations]
    assert sum(len(seen.rows) for seen in measured) > 0
    rows = [entry.row for entry in found]
    for seen in measured:
        assert all(row in rows for row in seen.rows)
    assert {"trial", "look"} <= {entry.evidence.split()[0] for entry in found} | {"look"}


def test_a_ratio_is_computed_again_from_its_rows(world: World) -> None:
    """Of comparisons in which no round was left out and none came from an earlier one."""
    checked = 0
    for seen in (*world.outcome.state.looks, *world.outcome.state.ablations):
        if len(seen.pairs) != 1 or seen.pairs[0].disturbed or not seen.rows:
            continue
        speeds = []
        for side in (seen.incumbent, seen.candidate):
            rows = [row for row in seen.rows if row.plan == side.plan.key]
            speeds.append(sum(row.samples or 0 for row in rows) / sum(row.seconds for row in rows))
        assert log(speeds[1] / speeds[0]) == pytest.approx(seen.pairs[0].log_ratio)
        checked += 1
    assert checked


def test_the_table_names_plans_and_processes(world: World) -> None:
    lines = list(csv.DictReader(io.StringIO(table(list(entries(world.run.directory.journal))))))
    assert set(COLUMNS) < set(lines[0])
    assert {line["plan"] for line in lines} >= {"baseline", "quick"}
    assert all(line["process"] and float(line["seconds"]) > 0 for line in lines)


def test_a_journal_without_comparisons_has_a_table_without_lines(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(b"")
    assert table(list(entries(journal))) == ",".join(COLUMNS) + "\n"
