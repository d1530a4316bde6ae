"""A kept change gives way to a rival that serves better beside what was kept later."""

from __future__ import annotations

from pathlib import Path

from autoopt.records import Plan, Verdict
from simulated import World, strategy, verdicts

INPUT = frozenset({"storage", "preparation"})


def speed(plan: Plan) -> float:
    """Two ways to prepare faster: the second one leaves the cores free that the third change needs."""
    names = set(plan.names())
    if {"second", "compute"} <= names:
        return 3.6 if "first" not in names else 1.8
    if {"first", "second"} <= names:
        return 1.7
    if "first" in names:
        return 2.3 if "compute" in names else 2.0
    return 1.6 if "second" in names else 1.2 if "compute" in names else 1.0


def test_what_was_kept_first_is_exchanged_for_what_serves_better(tmp_path: Path) -> None:
    strategies = [strategy("first", stages=INPUT), strategy("second", stages=INPUT), strategy("compute")]
    world = World(tmp_path, *strategies, speed=speed, budget=700.0)
    outcome = world.go()
    assert set(outcome.best.plan.names()) == {"second", "compute"}
    assert any("exchanged for second" in text for text in outcome.state.notes)
    kept = [trial for trial in outcome.state.trials if trial.verdict is Verdict.KEPT]
    assert "first" not in {trial.strategy for trial in kept if not trial.companions}
    assert world.clock() <= 700.0


def test_rivals_that_are_slower_in_its_place_change_nothing(tmp_path: Path) -> None:
    def plain(plan: Plan) -> float:
        names = set(plan.names())
        return (2.0 if "first" in names else 1.6 if "second" in names else 1.0) * (1.2 if "compute" in names else 1.0)

    strategies = [strategy("first", stages=INPUT), strategy("second", stages=INPUT), strategy("compute")]
    outcome = World(tmp_path, *strategies, speed=plain, budget=700.0).go()
    assert set(outcome.best.plan.names()) == {"first", "compute"}
    assert not any("exchanged" in text for text in outcome.state.notes)
    assert Verdict.KEPT in verdicts(outcome)["first"]
