"""The benchmark of serving, tuning and changes of the model: pieces that go on, and its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import changes, latency, tuning
from benchmarks.serving.commands import Piece, UnfinishedError


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_done_is_kept_and_what_does_not_fit_the_call_is_left_for_the_next(tmp_path: Path) -> None:
    clock = Clock()
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
    clock, asked = Clock(), []

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
