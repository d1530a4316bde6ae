"""A commit on this machine, asked about by ``autoopt compare`` under a ledger that goes on.

A placebo changes a comment; a true gain takes out a forward pass that nobody reads.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from autoopt.comparing.ask import Ask
from autoopt.comparing.compare import compare_sides
from autoopt.options import Options
from autoopt.records.comparing import Requirement
from autoopt.script.command import Build
from benchmarks.asks import git

FOLDER = Path.home() / ".cache" / "autoopt-benchmarks" / "asks"

JOB = '''"""A small convolution net on noise."""
import torch, autoopt
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

UNREAD = 0


def loss(model, batch):
    for _ in range(UNREAD):
        model(batch[0])
    return F.cross_entropy(model(batch[0]), batch[1])


def build():
    x = torch.randn(512, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    y = (x.mean((1, 2, 3)) > 0).long()
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 36, 2))
    return autoopt.Workload(model=model, train_data=TensorDataset(x, y), batch_size=32, max_steps=2000,
        loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.01))
'''


def ask(kind: str, number: int, budget: float) -> dict[str, Any]:
    """The answer to one ask, in the repository of all asks, which is made where it is missing.

    Args:
        kind: ``placebo`` or ``gain``; each has a ledger of its own.
    """
    if not (FOLDER / ".git").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        git(FOLDER, "init", "-q")
    before = JOB.replace("UNREAD = 0", "UNREAD = 1") if kind == "gain" else JOB
    for text in (before, f"{JOB}# {kind} {number}\n"):
        (FOLDER / "job.py").write_text(text)
        git(FOLDER, "add", "job.py")
        git(FOLDER, "commit", "-qm", f"{kind} {number}")
    options = Options(budget_seconds=budget, device="cpu")
    with contextlib.chdir(FOLDER):
        ask = Ask("HEAD~1", "HEAD", Requirement(kind="faster"), FOLDER / ".git" / f"{kind}.jsonl")
        found = compare_sides(ask, Build("job.py:build"), options)
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
