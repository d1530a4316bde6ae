"""The benchmark of serving, tuning and changes of the model: pieces that go on, and its tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import changes, latency, page, tuning
from benchmarks.serving.commands import Piece, UnfinishedError


def estimate(value: float) -> dict[str, Any]:
    return {"value": value, "low": 0.9 * value, "high": 1.1 * value}


MACHINE = {"cores": 2, "cpu": "a CPU", "load": [0.5, 0.4, 0.3]}


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


def test_a_run_that_searched_nothing_says_so(tmp_path: Path) -> None:
    piece = Piece(tmp_path, 100.0, Clock())
    piece.once("searched", lambda: {"tuning": {"trials": [], "note": "no time to train the baseline"}})
    with pytest.raises(SystemExit, match="nothing was searched .no time to train the baseline.: a larger budget"):
        tuning.tuned(piece, 60.0)


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


def test_the_pages_hold_what_was_measured(tmp_path: Path) -> None:
    trial = {
        "strategy": "lora", "setting": {"rank": 8, "targets": ["q"]}, "verdict": "no_gain", "reason": "too little",
        "throughput": estimate(1.1), "time_to_target": None, "quality": {"candidate": 0.71},
        "trained_parameters": 13578, "peak_memory_bytes": 3 << 20,
    }  # fmt: skip
    base = {
        "time_to_target_seconds": estimate(12.0), "metric": 0.72, "trained_parameters": 796682,
        "peak_memory_bytes": None,
    }  # fmt: skip
    document = {
        "lora": {
            "environment": MACHINE, "workload": "w:b", "budget_seconds": 240.0, "baseline": base, "trials": [trial],
            "objective": {"metric": "accuracy", "mode": "max", "target": 0.7},
        },
    }  # fmt: skip
    for name in ("models.md", "tune.md", "latency.md"):
        (tmp_path / name).write_text(f"before\n{page.MARK}\nold\n{page.MARK}\nafter\n")
    page.write(json.loads(json.dumps(document)), tmp_path)
    text = (tmp_path / "models.md").read_text()
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "| as it is | 1 | 12 [10.8, 13.2] s | 0.72 | 796,682 | not measured | |" in text
    assert (
        "| lora, 1 layers, rank 8 | 1.1 [0.99, 1.21]x | not measured | 0.71 | 13,578 | 3 | no gain: too little |"
        in text
    )
    assert (tmp_path / "tune.md").read_text() == f"before\n{page.MARK}\nold\n{page.MARK}\nafter\n"
    for name in ("models.md", "tune.md", "latency.md"):
        assert (Path(__file__).parents[2] / "docs" / name).read_text().count(page.MARK) == 2
