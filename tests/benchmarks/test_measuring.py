"""The benchmarks of asks, scheduling, searches, adoption, serving and of a device's first look."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest

from autoopt.storage.journal import read_journal
from benchmarks.adoption import own_trainer_side as side
from benchmarks.adoption.own_trainer import interval
from benchmarks.asks import simulated
from benchmarks.asks.__main__ import table
from benchmarks.asks.revisions import EXAMPLE, decoded_once
from benchmarks.distributed.trials import measured, places
from benchmarks.gpu import first_look as gpu_first_look
from benchmarks.gpu.first_look import CALLS, call, page
from benchmarks.gpu.look import Look
from benchmarks.search import minutes
from benchmarks.search.runs import first_look, kept, until_gains
from benchmarks.search.runs import table as table_of_runs
from benchmarks.serving import changes, latency, tuning
from benchmarks.serving.commands import Piece, UnfinishedError
from simulated import World, product, strategy


def test_ledgers_are_counted() -> None:
    found = simulated.ledgers("normal", 1, asks=3)
    assert (found["ledgers"], found["asks_each"], found["keeps"], found["ledgers_with_a_keep"]) == (1, 3, 0, 0)
    text = table({"simulated": {"normal": found}, "live": {"asks": [{"answer": "undecided"}, {"answer": "slower"}]}})
    assert "0 of 1 ledgers of 3 placebo asks with any called faster, 0 of 3 asks" in text
    assert "2 placebo commits under one ledger: 1 slower, 1 undecided" in text
    assert "0 of them came to an interval in their time" in text


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


# Seconds until a gain, read from the journals of runs.


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
    cells = [cell.strip() for cell in table_of_runs([tmp_path]).splitlines()[-1].split("|")[2:-1]]
    assert cells[0] == "240 s"
    assert cells[3] == "-", "no 30 %"
    assert cells[4:6] == ["1", "1"]
    assert cells[-2:] == ["1.20x [1.10, 1.30]", "yes"]


def test_the_table_tells_shares_errors_and_where_the_seconds_went() -> None:
    row = {"case": "one", "budget": 90.0, "share": 0.5, "useless": 1, "tried": 3, "seconds": 80.0}
    rows = [
        {**row, "spent": {"inspect": 9.0, "trainings": 4.0, "probe": 6.0}},
        {**row, "case": "nothing", "share": None, "useless": 0, "spent": {"inspect": 7.0}},
        {**row, "budget": 7200.0, "spent": {}},
    ]
    lines = minutes.table(rows)
    assert lines[2] == "| 1.5 min | 50 % | 1 of 2 | 3.0 | 8 s | 0 s | 0 s | 0 s | 0 s | 5 s | 0 s | 80 s |"
    assert lines[3].startswith("| 2 h | 50 % | 1 of 1 |")
    assert lines[5:] == ["| case | 1.5 min | 2 h |", "| --- | --- | --- |", "| one | 50 % | 50 % |"]


# The first look at a device: parts that fail say so, calls go on, the page shows every figure.

ROOT = Path(__file__).parents[2]


def test_a_part_that_fails_says_so_and_the_next_one_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def machine(look: Look) -> dict[str, Any]:
        raise RuntimeError("no CUDA-capable device is detected\nmore")

    def peaks(look: Look) -> dict[str, Any]:
        limits.append(look.left())
        return {"bf16": {"ratio": 0.97, "told": None}}

    monkeypatch.setitem(gpu_first_look.CALLS, "1", ((machine, 0.9), (peaks, 0.1)))
    told: list[int] = []
    document: dict[str, Any] = {"date": "2026-01-01", "device": "cuda:0"}
    call("1", document, device="cuda:0", toy=False, seconds=100.0, tell=lambda known: told.append(len(known)))
    assert document["machine"]["not measured"] == "RuntimeError: no CUDA-capable device is detected"
    assert limits[0] > 90, "what the first did not need is the second's"
    assert told == [3, 4], "written again after each part"
    written = page(document)
    assert "| bf16.ratio | 0.97 |" in written
    assert "| bf16.told | not measured |" in written


def test_the_stand_in_for_psutil_tells_what_psutil_tells() -> None:
    path = ROOT / "benchmarks" / "gpu" / "stand_in" / "psutil.py"
    spec = importlib.util.spec_from_file_location("stand_in_psutil", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.virtual_memory().total == psutil.virtual_memory().total
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            assert child.pid in [process.pid for process in module.Process().children(recursive=True)]
            assert os.getpid() in [process.pid for process in module.Process(child.pid).parents()]
            assert module.Process(child.pid).memory_info().rss > 0
        finally:
            child.communicate(b"\n")
    with pytest.raises(module.Error):
        module.Process(child.pid)


@pytest.mark.slow
@pytest.mark.parametrize("number", CALLS)
def test_every_part_runs_at_toy_size(number: str, tmp_path: Path) -> None:
    out = tmp_path / "look.json"
    command = [sys.executable, "-m", "benchmarks.gpu.first_look", number, "--toy", "--device", "cpu"]
    subprocess.run([*command, "--seconds", "60", "--out", str(out)], cwd=ROOT, check=True, timeout=600)
    document = json.loads(out.read_text())
    for part, _ in CALLS[number]:
        assert "not measured" not in document[part.__name__], document[part.__name__]
    if number == "2":
        assert set(document["predictions"]["changes"]) == {"cuda_graphs", "fused_optimizer"}


# The benchmark of adoption: the gate that holds a Trainer between steps, ratios, the table; a real Trainer at it.


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


def test_a_ratio_has_an_interval_from_two_pairs_on() -> None:
    assert interval([0.0])["low"] is None
    found = interval([0.1, 0.2, 0.3])
    assert found["n"] == 3
    assert found["low"] < 1.2214 < found["high"]
    assert found["value"] == pytest.approx(1.2214, rel=1e-4)


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
