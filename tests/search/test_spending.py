"""The seconds of a run by what they went on, and what more of them would buy."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoopt.records import Plan, Round, StopReason
from autoopt.search.outcome import IDLE, more_budget, spending, spent_on
from autoopt.search.planner import Queue
from autoopt.search.rounds import Rounds
from autoopt.storage.run import Took
from autoopt.strategy import Risk

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulated import World, product, strategy


def test_every_second_is_spent_on_one_thing() -> None:
    took = [Took("look", "look 1", 8.0), Took("look", "look 2", 7.0), Took("comparison", "verification", 20.0)]
    rows = {row.on: row.seconds for row in spending(took, 40.0)}
    assert rows == {"verification": 20.0, "comparing candidates": 15.0, IDLE: 5.0}


@pytest.mark.parametrize(
    ("kind", "purpose", "what"),
    [
        ("trial", "trial 3", "confirmation"),
        ("evaluations", "", "comparing candidates"),
        ("comparison", "ablation: without", "ablation"),
        ("training", "baseline seed 0", "baseline's training"),
        ("trainings", "verification seed 1000", "verification"),
        ("probe", "", "quality"),
    ],
)
def test_the_purpose_of_a_step_says_more_than_its_kind(kind: str, purpose: str, what: str) -> None:
    assert spent_on(kind, purpose) == what


def test_a_resumed_run_knows_what_was_spent_before(tmp_path: Path) -> None:
    speeds = {"quick": 1.5}
    first = World(tmp_path, strategy("quick"), speed=product(speeds), budget=300.0)
    first.go()
    again = World(tmp_path, strategy("quick"), speed=product(speeds), budget=300.0, resume=True)
    again.go()
    assert spending(again.run.took, again.clock()) == spending(first.run.took, first.clock())


def test_more_budget_buys_what_there_was_no_time_for(tmp_path: Path) -> None:
    names = [f"useless_{number}" for number in range(12)]
    short = World(tmp_path / "short", *(strategy(name) for name in names), speed=lambda plan: 1.0, budget=90.0)
    told = more_budget(short.go().state)
    assert "min more would screen" in told
    assert "useless_11" in told or "more)" in told
    ample = World(tmp_path / "ample", strategy("slow"), speed=lambda plan: 0.7 ** len(plan.changes), budget=900.0)
    assert more_budget(ample.go().state) == ""


def test_a_budget_that_ends_before_the_first_round_is_told_which_one_would_do(tmp_path: Path) -> None:
    short = World(tmp_path / "short", strategy("quick"), speed=lambda plan: 1.5 ** len(plan.changes), budget=20.0)
    stop = short.go().stop
    assert stop.reason is StopReason.BUDGET
    told = re.search(r"a budget of about ([0-9.]+) min would try changes", stop.detail)
    assert told, stop.detail
    enough = World(
        tmp_path / "enough", strategy("quick"), speed=lambda plan: 1.5 ** len(plan.changes), budget=60 * float(told[1])
    )
    assert [trial.strategy for trial in enough.go().state.trials] == ["quick"]


def test_what_there_was_no_time_for_is_not_said_to_have_been_tried() -> None:
    trials = [SimpleNamespace(strategy="workers")]
    round_ = Round(index=0, plan=Plan(), step_seconds=0.1, stages=(), bottleneck="forward")
    state = SimpleNamespace(unseen={"compile": 40.0, "workers": 9.0}, trials=trials, rounds=[round_])
    rounds: Any = SimpleNamespace(over=lambda: None, state=state, threshold=1.05)
    stop = Rounds.stop(rounds, Queue())
    assert (stop.reason, stop.detail) == (StopReason.BUDGET, "there was no time left for compile")
    state.unseen.clear()
    assert Rounds.stop(rounds, Queue()).reason is StopReason.EXHAUSTED


def test_probes_are_expected_to_take_what_they_took(tmp_path: Path) -> None:
    one = World(tmp_path, strategy("rounds", risk=Risk.NUMERIC), speed=product({"rounds": 1.5}), budget=600.0)
    one.runner.probe_seconds = 20.0
    state, probes = one.go().state, one.context.gate.probes
    assert one.context.probes_due(state.incumbent, state.baseline) == 0.0
    probes.weights = ("kept.pt",)  # by a training, since then
    each = one.context.allocation.start_seconds + 20.0
    assert one.context.probes_due(state.incumbent, state.baseline) == pytest.approx(2 * each)
