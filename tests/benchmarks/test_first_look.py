"""The first look at a device: parts that fail say so, calls go on, the page shows every figure."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.gpu import first_look
from benchmarks.gpu.first_look import CALLS, call, page
from benchmarks.gpu.look import Look

ROOT = Path(__file__).parents[2]


def test_a_part_that_fails_says_so_and_the_next_one_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []

    def machine(look: Look) -> dict[str, Any]:
        raise RuntimeError("no CUDA-capable device is detected\nmore")

    def peaks(look: Look) -> dict[str, Any]:
        limits.append(look.left())
        return {"bf16": {"ratio": 0.97, "told": None}}

    monkeypatch.setitem(first_look.CALLS, "1", ((machine, 0.9), (peaks, 0.1)))
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
