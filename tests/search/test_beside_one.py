"""Second looks at several that did well, all alive beside one process of the incumbent, in simulated time."""

from __future__ import annotations

from contextlib import closing
from math import log
from pathlib import Path

import pytest

from autoopt.errors import TrialFailed
from autoopt.options import Options
from autoopt.records import Change, Plan, Verdict
from autoopt.search.baseline import benchmark, described
from autoopt.search.candidate import Candidate
from autoopt.search.screened import Screened
from autoopt.search.screening import Screening
from autoopt.search.state import SearchState
from autoopt.testing.fakes import Behaviour, NoiseModel
from simulated import World, product, strategy

SPEEDS = {"a": 1.3, "b": 1.2, "c": 1.1}


def world(folder: Path, **options) -> World:
    noise = NoiseModel("normal", block_sd=0.02, process_sd=0.01)
    return World(folder, *map(strategy, SPEEDS), **{"speed": product(SPEEDS), "noise": noise, **options})


def looked_at(made: World, seconds: float = 400.0) -> tuple[SearchState, Screening, list[Screened]]:
    """A first look at each."""
    options = Options(budget_seconds=made.budget)
    state = described(made.context, options)
    benchmark(made.context, state, options)
    case = state.case(made.context.runner.registry, None, seconds)
    screening = Screening(made.context, state, case, made.clock() + seconds)
    for name in SPEEDS:
        change = Change(strategy=name)
        screening.look(Candidate(made.context.runner.registry[name], change, (), Plan(changes=(change,)), None))
    return state, screening, list(screening.found)


def began(made: World, since: int) -> list[tuple[str, ...]]:
    return [plan.names() for plan, _ in made.runner.machine.started[since:]]


def test_one_process_of_the_incumbent_serves_all(tmp_path: Path) -> None:
    made = world(tmp_path)
    state, screening, found = looked_at(made)
    since, looks = len(made.runner.machine.started), len(state.looks)
    with closing(screening):
        assert screening.again(found)
    assert sorted(began(made, since)) == [(), ("a",), ("b",), ("c",)]
    assert not made.runner.machine.alive, "processes were left behind"
    again = state.looks[looks:]
    assert [len(look.pairs) for look in again] == [1, 1, 1], "a look is one pair of processes"
    for screened in screening.found:
        assert len(screened.looks) == 2
        assert screened.gain == pytest.approx(log(SPEEDS[screened.candidate.change.strategy]), abs=0.1)
        assert "2 looks" in screened.trial.reason


def test_what_does_not_fit_into_memory_together_is_looked_at_one_by_one(tmp_path: Path) -> None:
    made = world(tmp_path)
    state, screening, found = looked_at(made)
    since = len(made.runner.machine.started)
    state.apart = True
    with closing(screening):
        assert screening.again(found)
    assert len(began(made, since)) >= 4
    assert all(len(screened.looks) == 2 for screened in screening.found)


def test_one_that_crashes_beside_the_others_is_told(tmp_path: Path) -> None:
    made = world(tmp_path)
    state, screening, found = looked_at(made)
    usual = made.runner.machine.behave

    def behave(plan: Plan) -> Behaviour:
        lost = "b" in plan.names()
        return Behaviour(**{**vars(usual(plan)), "fails": TrialFailed("crashed", "gone") if lost else None})

    made.runner.machine.behave = behave
    with closing(screening):
        assert screening.again(found)
    assert {screened.candidate.change.strategy for screened in screening.found} == {"a", "c"}
    (lost,) = [trial for trial in state.trials if trial.strategy == "b"]
    assert lost.verdict is Verdict.FAILED
    assert not made.runner.machine.alive
