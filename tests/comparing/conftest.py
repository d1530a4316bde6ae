"""A small repository of a user's, for what compares revisions of it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoopt.records.comparing import Compared, ComparedSide

Git = Callable[..., str]

HONEST = """
import os, select, time, torch, autoopt
from torch.nn import functional as F
from torch.utils.data import TensorDataset

SECONDS, ALIKE, HERE = 0.0, False, os.path.dirname(__file__)

def sleep(seconds):
    select.select([], [], [], seconds)  # so long by the kernel's clock, whatever the process's own shows

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 64), torch.nn.Linear(64, 2)
    def forward(self, x):
        return self.second(torch.relu(self.first(x)))

def data(n=256):
    x = torch.randn(n, 8, generator=torch.Generator().manual_seed(0))
    if ALIKE:
        x = x[:1].expand(n, 8)
    return TensorDataset(x, (x.sum(1) > 0).long())

def work(model, batch):
    sleep(SECONDS)
    return F.cross_entropy(model(batch[0]), batch[1])

def evaluate(model, batches):
    hits = [(model(x).argmax(1) == y).float() for x, y in batches]
    return {"accuracy": float(torch.cat(hits).mean())}

loss, optimizer = work, lambda p: torch.optim.SGD(p, lr=0.1)

def fields():
    return dict(model=Model(), train_data=data(), batch_size=16, loss=loss, optimizer=optimizer, valid_data=data(64),
        evaluate=evaluate, target=autoopt.Target("accuracy", at_least=0.9), max_steps=10000)

def build():
    return autoopt.Workload(**fields())
"""
"""A build whose steps take so many seconds, for candidates that look faster."""

JOB = """
import torch, time, autoopt
from torch.nn import functional as F
from torch.utils.data import TensorDataset

def build():
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
    def loss(m, b):
        time.sleep(0.02)
        return F.cross_entropy(m(b[0]), b[1])
    return autoopt.Workload(model=torch.nn.Linear(8, 2), train_data=TensorDataset(x, (x.sum(1) > 0).long()),
        batch_size=16, max_steps=10000, loss=loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
"""
"""The smallest build, whose step takes 20 ms."""


def repository(folder: Path) -> Git:
    """``git(*words)`` in a repository that is made in a folder."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")

    def run(*words: str) -> str:
        done = subprocess.run(["git", *identity, *words], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    run("init", "-q")
    return run


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """``git(*words)`` in a fresh repository, which is the present folder."""
    folder = tmp_path / "user"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return repository(folder)


SLOW = "        sum(float(number) for number in self.tensors[0][index] for _ in range(32))\n"


def slow_script() -> str:
    """``scripts/plain.py`` that reads samples one number at a time, for nothing, in the line ``SLOW``."""
    made = "class Data(TensorDataset):\n    def __getitem__(self, index):\n"
    made += f"{SLOW}        return super().__getitem__(index)\n\n\n"
    plain = Path(__file__).parents[1] / "scripts" / "plain.py"
    text = plain.read_text().replace("data = TensorDataset", "data = Data")
    return text.replace("torch.manual_seed(3)", made + "torch.manual_seed(3)", 1)


def committed(git: Git, text: str, message: str) -> None:
    """A commit in which ``job.py`` has this text."""
    Path("job.py").write_text(text)
    git("add", ".")
    git("commit", "-qm", message)


def a_comparison(**fields: Any) -> Compared:
    """The document of a comparison with such fields."""
    side = ComparedSide(given="m:b", kind="build", spec="m:b")
    usual = {"autoopt_version": "0", "created": "", "seconds": 1.0, "seed": 1, "answer": "undecided", "reason": ""}
    return Compared.model_validate({**usual, "baseline": side, "candidate": side, **fields})
