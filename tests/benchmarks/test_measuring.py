"""The benchmarks of asks, scheduling, adoption and serving."""

from __future__ import annotations

import ast
import json
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from autoopt.testing.fakes import FakeClock
from benchmarks.adoption import own_trainer_side as side
from benchmarks.asks import simulated
from benchmarks.asks.revisions import EXAMPLE, decoded_once
from benchmarks.distributed.trials import measured, places
from benchmarks.serving import changes, latency, tuning
from benchmarks.serving.commands import Piece, UnfinishedError


def test_ledgers_are_counted() -> None:
    found = simulated.ledgers("normal", 1, asks=3)
    assert (found["ledgers"], found["asks_each"], found["keeps"], found["ledgers_with_a_keep"]) == (1, 3, 0, 0)


def test_the_second_revision_of_the_example_is_what_it_says() -> None:
    before = EXAMPLE.read_text()
    after = decoded_once(before)
    ast.parse(after)
    assert "Image.open(self.files[index])" not in after
    assert after.count("self.images") == 2


# The benchmark of scheduling, small: every trial is a process of its own, every place has its share.


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
def test_trials_are_shared_out_over_places_and_leave_nothing(tmp_path: Path, fresh: bool) -> None:
    with places("local", 2, tmp_path) as where:
        found = measured(where, 6, 0.01, tmp_path, fresh=fresh)
    assert (found["trials"], found["places"], sum(found["by_place"])) == (6, 2, 6)
    assert 0.0 < found["efficiency"] <= 1.0
    assert found["wall_seconds"] >= 0.03


# The benchmark of adoption: the gate that holds a Trainer between steps, ratios, the table; a real Trainer at it.

ROOT = Path(__file__).parents[2]


def test_the_gate_holds_the_loop_between_steps() -> None:
    gate = side.Gate()

    def loop() -> None:
        with gate.condition:
            gate.condition.wait_for(lambda: gate.enough is not None)
        for _ in range(5):
            gate.step(8)
        with gate.condition:
            gate.ended = "the end"
            gate.condition.notify_all()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    gate.run(lambda now: gate.steps >= 2)
    assert (gate.steps, gate.samples) == (2, 16)
    gate.run(lambda now: True)
    assert gate.steps == 3
    with pytest.raises(RuntimeError, match="the end"):
        gate.run(lambda now: False)
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("example", "target"), [("lightning_digits", "lightning"), ("hf_text", "transformers")])
def test_a_real_trainer_goes_step_by_step(
    example: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "OWN_TRAINER", json.dumps({"folder": str(tmp_path), "target": target}))
    gate = side.Gate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = f"{ROOT / 'examples' / example}.py:build"
        fit = side.built(spec, False, 0, side.WITHOUT_END[target], gate)
        threading.Thread(target=fit, daemon=True).start()
        gate.run(lambda now: gate.steps >= 3)
    assert gate.steps == 3
    assert gate.samples == 3 * {"lightning": 32, "transformers": 16}[target]


# The benchmark of serving, tuning and changes of the model: pieces that go on, and its tables.


def test_what_is_done_is_kept_and_what_does_not_fit_the_call_is_left_for_the_next(tmp_path: Path) -> None:
    clock = FakeClock()
    piece, made = Piece(tmp_path / "case", 100.0, clock), []

    def measure() -> dict[str, Any]:
        made.append(1)
        return {"lr": 0.1}

    assert piece.once("search", measure) == {"lr": 0.1}
    clock.now = 60.0
    with pytest.raises(UnfinishedError, match="it takes about 50 s, 40 s are left"):
        piece.need(50.0, "it")
    assert Piece(tmp_path / "case", 100.0, clock).once("search", measure) == {"lr": 0.1}
    assert len(made) == 1


def test_fresh_trainings_go_on_where_the_last_call_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked = FakeClock(), []

    def train(lr: float | None, seed: int) -> tuple[int, float]:
        asked.append((lr, seed))
        clock.now += 30.0
        return 42, 30.0

    monkeypatch.setattr(tuning, "steps_to_target", train)
    rates = {"own": None, "autoopt": 0.02, "optuna": None}
    with pytest.raises(UnfinishedError):
        tuning.fresh(Piece(tmp_path, 100.0, clock), rates)
    runs = tuning.fresh(Piece(tmp_path, 1000.0, clock), rates)
    assert [len(runs[name]) for name in rates] == [3, 3, 0], "what no search found is not trained"
    assert asked == [(lr, seed) for seed in tuning.FRESH for lr in (None, 0.02)]


def test_every_case_names_a_workload_that_there_is() -> None:
    specs = [
        *latency.CASES.values(),
        *latency.STUDENTS.values(),
        tuning.TUNED,
        *(case[0] for case in changes.CASES.values()),
    ]
    for spec in filter(None, specs):
        path, _, name = spec.partition(":")
        assert f"def {name}(" in (Path(__file__).parents[2] / path).read_text()
