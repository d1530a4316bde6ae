"""TensorBoard with the torch-tb-profiler plugin, really started on a trace of ours; its pages are fetched."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from autoopt.benchmark.trial_context import TrialContext
from autoopt.profilers import tasks
from autoopt.records.protocol import TrialSpec
from autoopt.registry import load_strategies

pytest.importorskip("tensorboard")
pytest.importorskip("torch_tb_profiler")

SLOW_INPUT = """
import torch
from torch import nn
from torch.utils.data import Dataset
import autoopt

class Slow(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.randn(6)
        for _ in range(200):
            x = x + 0.0
        return x, index % 3

def build():
    return autoopt.Workload(
        model=nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), train_data=Slow(), batch_size=8,
        loss=nn.CrossEntropyLoss(), optimizer=lambda p: torch.optim.AdamW(p, lr=0.01), max_epochs=4)
"""
Fetch = Callable[..., Any]


@pytest.fixture
def found(tmp_path: Path) -> Any:
    (tmp_path / "slow.py").write_text(SLOW_INPUT)
    live = TrialContext(TrialSpec(workload=f"{tmp_path / 'slow.py'}:build"), load_strategies())
    yield tasks.torch_profiler(live, str(tmp_path), 4)
    live.close()


@pytest.fixture
def fetch(found: Any, tmp_path: Path) -> Iterator[Fetch]:
    """Asks the plugin of a TensorBoard that was started by the command which the summary gives."""
    (command,) = [line for line in found["lines"] if line.startswith("tensorboard --logdir")]
    words = [sys.executable, "-W", "ignore", "-m", "tensorboard.main", *command.split()[1:]]
    process = subprocess.Popen(
        [*words, "--port", "0", "--host", "127.0.0.1", "--load_fast=false"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stderr is not None
    drain = threading.Thread(target=process.stderr.read, daemon=True)  # else it would wait for a reader
    try:
        port = next(match[1] for line in process.stderr if (match := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        drain.start()

        def ask(page: str, **words: str) -> Any:
            address = f"http://127.0.0.1:{port}/data/plugin/pytorch_profiler/{page}?{urlencode(words)}"
            with urllib.request.urlopen(address, timeout=30) as answer:
                return json.load(answer)

        yield ask
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if drain.is_alive():
            drain.join()
        process.stderr.close()


@pytest.mark.slow
def test_the_plugins_pages_show_the_trace(found: Any, fetch: Fetch) -> None:
    while (runs := fetch("runs"))["loading"] or not runs["runs"]:  # it reads in the background; pytest-timeout ends it
        pass
    (run,) = runs["runs"]
    assert {"Overview", "Operator", "Trace"} <= set(fetch("views", run=run))
    (worker,) = fetch("workers", run=run, view="Overview")
    (span,) = fetch("spans", run=run, worker=worker)
    where = {"run": run, "worker": worker, "span": str(span)}
    overview = fetch("overview", **where, view="Overview")
    assert "DataLoader" in json.dumps(overview["performance"])
    told = re.sub(r"<[^>]+>", "", overview["recommendations"])
    assert "DataLoader" in told  # most of the step is input: the plugin must say so, and so must the summary
    assert any("DataLoader" in line and "%" in line for line in found["lines"])
    assert any(line in told for line in found["lines"] if "DataLoader" in line and "num_workers" in line)
    table = fetch("operation/table", **where, view="Operator", group_by="Operation")
    names = {row["name"] for row in table["data"]}
    assert {"data", "forward", "backward", "optimizer"} <= names, names
