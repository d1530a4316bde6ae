"""The comparison with the rivals: what is pinned, what is judged, and what the page then says."""

from __future__ import annotations

import json
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers import data, judge, rivals
from benchmarks.peers.fetching import UnfetchedError, fetch
from benchmarks.peers.workloads import OURS, WORKLOADS

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.optim.SGD(model.parameters(), lr=0.0)
for epoch in range(100):
    model.train()
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        other.step()
    model.eval()
print("to the end")
"""


def test_every_script_is_named_by_a_revision_and_by_its_content() -> None:
    for workload in WORKLOADS.values():
        if workload.source != OURS:
            assert re.fullmatch(r"[0-9a-f]{40}", workload.source[1]), workload.name
            assert re.fullmatch(r"[0-9a-f]{40}", workload.blob), workload.name
        if workload.metric:
            assert re.compile(workload.metric).groups == 1, workload.name


def test_a_repository_without_the_revision_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "karpathy+nanoGPT" / "repo"], check=True)
    monkeypatch.setenv("PEERS_MIRROR", str(tmp_path))
    monkeypatch.setattr("benchmarks.peers.fetching.SCRATCH", tmp_path / "scratch")
    with pytest.raises(UnfetchedError, match=WORKLOADS["nanogpt"].source[1]):
        fetch(WORKLOADS["nanogpt"])


def test_digits_come_in_the_form_of_mnist(tmp_path: Path) -> None:
    data.mnist(tmp_path, train=7, test=3)
    images = (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").read_bytes()
    assert struct.unpack(">IIII", images[:16]) == (2051, 7, 28, 28)
    assert len(images) == 16 + 7 * 28 * 28


def test_the_clock_counts_the_first_optimizer_and_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    out = tmp_path / "clock.json"
    told = {"PEERS_CLOCK": str(out), "PEERS_STEPS": "5", "PEERS_SCRIPT": "train.py", "PYTHONPATH": str(judge.CLOCK)}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, **told},
        capture_output=True,
        text=True,
        check=True,
    )
    noted = json.loads(out.read_text(encoding="utf-8"))
    assert [len(noted[key]) for key in ("times", "aside", "losses")] == [5, 5, 5]
    assert noted["losses"] == sorted(noted["losses"], reverse=True)
    assert noted["aside"][2] == 0.0 < noted["aside"][3], "what lies between eval() and train() is set aside"
    assert "to the end" not in done.stdout


def run(index: int, side: str, seconds: float, loss: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"round": index, "side": side, "seconds": seconds, "loss": loss, "first_losses": [loss], **more}


def test_a_ratio_is_taken_round_by_round() -> None:
    runs = [run(0, "untouched", 4.0), run(0, "x", 2.0), run(1, "x", 4.0), run(1, "untouched", 8.0)]
    found = judge.ratio(runs, "x")
    assert found is not None
    assert (found["value"], found["n"]) == (pytest.approx(2.0), 2)
    assert found["low"] == pytest.approx(2.0)
    assert judge.ratio([run(0, "untouched", 4.0)], "x") is None


def test_an_interval_holds_its_mean_and_a_single_pair_has_none() -> None:
    found = judge.interval([math.log(1.0), math.log(1.5), math.log(1.2)])
    assert found is not None
    assert found["low"] < found["value"] < found["high"]
    assert judge.interval([0.1]) == {"value": pytest.approx(math.exp(0.1)), "low": None, "high": None, "n": 1}


@pytest.mark.parametrize(
    ("loss", "good"),
    [(1.04, True), (1.2, True), (1.3, False), (math.nan, False)],
    ids=["near", "in range", "off", "nan"],
)
def test_losses_decide_whether_a_result_counts(loss: float, good: bool) -> None:
    runs = [run(0, "untouched", 1.0, 1.0), run(1, "untouched", 1.0, 1.2), run(0, "x", 0.5, loss)]
    assert judge.as_good(runs, "x") is good


def workload(rival: str, status: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    outcome = {"status": status, "seconds": 9.0, "said": "a | b", "load": 0.5, "more": {}, "version": "1"}
    return {
        "name": "one",
        "kind": "kind",
        "source": ["a/b", "0" * 40],
        "command": ["train.py"],
        "stand_in": "none",
        "steps": [1, 10],
        "judged": {"runs": runs},
        "rivals": dict.fromkeys(judge.SOURCES) | {rival: outcome},
    }


def test_a_loss_is_told_as_plainly_as_a_win() -> None:
    slow = [run(0, "untouched", 4.0), run(0, "tips", 8.0), run(1, "untouched", 4.0), run(1, "tips", 8.0)]
    cell, counted = judge.verdict(workload("tips", "result", slow), "tips")
    assert cell.startswith("0.50×")
    assert counted == pytest.approx(math.log(0.5))


@pytest.mark.parametrize(
    ("status", "cell", "counted"),
    [("cannot", "cannot", None), ("nothing", "no change", 0.0), ("stopped", "no result in time", 0.0)],
)
def test_a_tool_without_a_result_is_said_to_be_so(status: str, cell: str, counted: float | None) -> None:
    assert judge.verdict(workload("tips", status, []), "tips") == (cell, counted)


def test_a_faster_result_with_other_losses_does_not_count() -> None:
    runs = [run(0, "untouched", 4.0, 1.0), run(0, "tips", 1.0, 9.0)]
    cell, counted = judge.verdict(workload("tips", "result", runs), "tips")
    assert cell.startswith("other losses")
    assert counted == 0.0


def test_every_tool_is_in_the_table() -> None:
    assert set(judge.SOURCES) == set(rivals.RIVALS)


def test_a_second_search_keeps_what_the_first_had_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([rivals.Outcome("failed", 5.0, "broke"), rivals.Outcome("nothing", 7.0, "no gain")])
    monkeypatch.setattr(rivals, "SCRATCH", tmp_path)
    monkeypatch.setattr(rivals, "copy_of", lambda *_: tmp_path)
    monkeypatch.setitem(rivals.RIVALS, "tips", lambda *_: next(found))
    vae = WORKLOADS["vae"]
    assert rivals.search(vae, "tips", 10.0).status == "failed"
    assert rivals.search(vae, "tips", 10.0).status == "failed"
    assert rivals.search(vae, "tips", 10.0, again=True).status == "nothing"
    told = json.loads((rivals.place(vae, "tips") / "outcome.json").read_text(encoding="utf-8"))
    assert [one["status"] for one in told["earlier"]] == ["failed"]
