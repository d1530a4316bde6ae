"""A second run of the same workload begins with the plan that the first one found, and proves it again."""

from __future__ import annotations

import sys
from pathlib import Path

from autoopt.events import Kept
from autoopt.records import Change, Plan
from autoopt.search.compare.sequential_test import PLAN_DOF
from autoopt.search.recollection import known_noise
from autoopt.storage.history import History, KnownNoise, Remembered

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulated import World, product, strategy

SPEEDS = {"a": 1.0, "b": 1.3, "c": 1.0, "d": 0.9, "e": 1.6, **dict.fromkeys("fghijk", 1.0)}


def world(folder: Path, history: History, budget: float = 900.0) -> World:
    made = World(folder, *(strategy(name) for name in SPEEDS), speed=product(SPEEDS), budget=budget)
    made.context.history = history
    return made


def first_kept(made: World) -> float:
    return next(event.at for event in made.events if isinstance(event, Kept))


def test_the_second_run_keeps_the_plan_of_the_first_sooner_and_proves_it(tmp_path: Path) -> None:
    history = History(tmp_path / "history.json")
    first, second = world(tmp_path / "first", history), world(tmp_path / "second", history)
    outcome = first.go()
    assert {"b", "e"} <= set(outcome.best.plan.names())
    assert history.noise("cpu").process_sd == outcome.state.noise.process_sd
    again = second.go()
    assert set(again.best.plan.names()) >= {"b", "e"}
    control = next(event.at for event in second.events if type(event).__name__ == "RoundMeasured")
    assert first_kept(second) - control < (first_kept(first) - control) / 1.5
    (kept,) = [trial for trial in again.state.trials if trial.verdict == "kept" and trial.round == 1]
    assert len(kept.ratios) >= 2  # fresh pairs of processes
    assert second.loop.state is not None
    guess = known_noise(second.loop.state)
    assert guess is not None
    assert guess.dof == PLAN_DOF, "worth two pairs of processes at most"
    assert history.recall("nothing of the kind") == Remembered(), "workloads are another section"


def test_a_plan_that_no_longer_pays_is_only_looked_at(tmp_path: Path) -> None:
    history = History(tmp_path / "history.json")
    made = world(tmp_path / "run", history)
    key = f"fake:build in {Path.cwd()} on cpu"
    history.remember(key, Remembered(plan=Plan(changes=(Change(strategy="d"),)), speedup=3.0))
    assert set(made.go().best.plan.names()) == {"b", "e"}


def test_a_file_without_noise_is_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text('{"schema_version": 1, "workloads": {"w": {"plan": {"changes": []}, "speedup": 1.2}}}')
    history = History(path)
    assert history.noise("cpu") == KnownNoise()
    history.remember_noise("cpu", KnownNoise(process_sd=0.03, pairs=4.0))
    assert history.recall("w").speedup == 1.2
