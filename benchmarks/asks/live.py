"""A placebo commit on this machine: a comment more, asked about by ``autoopt compare`` under a ledger that goes on."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import Any

from autoopt.comparing.compare import compare_sides
from autoopt.options import Options
from autoopt.records.comparing import Requirement
from autoopt.script.command import Build

FOLDER = Path.home() / ".cache" / "autoopt-benchmarks" / "asks"

JOB = '''"""A small convolution net on noise."""
import torch, autoopt
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset


def build():
    x = torch.randn(512, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0).long()
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 36, 2))
    return autoopt.Workload(model=model, train_data=TensorDataset(x, y), batch_size=32, max_steps=2000,
        loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]), optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
'''


def ask(number: int, budget: float) -> dict[str, Any]:
    """The answer to one ask, in the repository of placebo commits, which is made where it is missing."""
    if not (FOLDER / ".git").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        _git("init", "-q")
        (FOLDER / "job.py").write_text(JOB)
        _git("add", "job.py")
        _git("commit", "-qm", "the job")
    with (FOLDER / "job.py").open("a") as file:
        file.write(f"# change {number}\n")
    _git("commit", "-qam", f"placebo {number}")
    options = Options(budget_seconds=budget, device="cpu")
    with contextlib.chdir(FOLDER):
        found = compare_sides(
            "HEAD~1", "HEAD", Build("job.py:build"), options,
            requirement=Requirement(kind="faster"), ledger=FOLDER / ".git" / "asks.jsonl",
        )  # fmt: skip
    ratio, ledger = found.throughput, found.ledger
    assert ledger is not None
    return {
        "ask": ledger.ask,
        "budget_seconds": budget,
        "alpha": ledger.alpha,
        "e_value": ledger.e_value,
        "answer": found.answer,
        "reason": found.reason,
        "ratio": ratio.model_dump() if ratio else None,
        "quality": found.learning.level,
        "seconds": found.seconds,
    }


def _git(*words: str) -> None:
    identity = ("-c", "user.name=autoopt", "-c", "user.email=autoopt@example.invalid")
    subprocess.run(["git", *identity, *words], cwd=FOLDER, check=True, capture_output=True)
