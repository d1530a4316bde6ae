"""What became of each candidate, over its trials and the ablation."""

from __future__ import annotations

from pathlib import Path

from autoopt.records import Change, Decided, Plan, Verdict
from autoopt.search.decided import decided
from simulated import World, product, strategy


def told(world: World) -> dict[str, Decided]:
    return {row.strategy: row for row in decided(world.go().state)}


def test_a_part_of_a_stack_is_decided_by_leaving_it_out(tmp_path: Path) -> None:
    names = ("one", "other")
    world = World(tmp_path, *map(strategy, names), speed=product(dict.fromkeys(names, 1.4)), budget=600.0)
    rows = told(world)
    assert {trial.strategy for trial in world.loop.state.trials if trial.verdict is Verdict.KEPT} != set(names)
    for name in names:
        assert rows[name].verdict is Verdict.KEPT
        assert "with and without it" in rows[name].by


def test_what_was_decided_before_another_change_came_into_the_plan_is_told_so(tmp_path: Path) -> None:
    names = ("one", "other")
    world = World(tmp_path, *map(strategy, names), speed=product(dict.fromkeys(names, 1.4)), budget=600.0)
    state = world.go().state
    state.incumbent = Plan(changes=(*state.incumbent.changes, Change(strategy="later")))
    rows = {row.strategy: row for row in decided(state)}
    stacked = [name for name in names if "with and without it" in rows[name].by]
    assert stacked
    for name in stacked:
        assert rows[name].verdict is Verdict.KEPT
        assert "later came into it" in rows[name].by
    assert rows["later"].verdict is None


def test_what_is_slower_or_fails_is_decided_and_what_is_equal_is_not(tmp_path: Path) -> None:
    speeds = {"slow": 0.5, "equal": 1.0}
    world = World(tmp_path, *map(strategy, speeds), speed=product(speeds), budget=240.0)
    rows = told(world)
    assert rows["slow"].verdict in (Verdict.NO_GAIN, Verdict.HARMFUL)
    assert rows["equal"].verdict is None
    assert rows["equal"].by


def test_what_was_never_measured_is_no_candidate(tmp_path: Path) -> None:
    world = World(tmp_path, strategy("quick"), speed=product({"quick": 1.5}), budget=240.0)
    state = world.go().state
    state.skip(strategy("never"), Verdict.NOT_TRIED, "left out")
    assert [row.strategy for row in decided(state)] == ["quick"]


def test_a_companion_that_is_no_part_of_the_plan_is_decided_by_leaving_it_out(tmp_path: Path) -> None:
    first = strategy("first", companions=lambda self, case, setting: [Change(strategy="passenger")])
    speeds = {"first": 1.5, "passenger": 0.8}
    world = World(tmp_path, first, strategy("passenger"), speed=product(speeds), budget=900.0)
    outcome = world.go()
    assert outcome.best.plan == Plan(changes=(Change(strategy="first"),))
    rows = {row.strategy: row for row in decided(outcome.state)}
    assert rows["passenger"].verdict in (Verdict.NO_GAIN, Verdict.HARMFUL)
