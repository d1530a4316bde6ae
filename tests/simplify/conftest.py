"""Planted sources: written to a file of their own, imported, and assembled with one thread."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from autoopt.benchmark.training import Training
from autoopt.simplify import tasks
from modules import module_of

HEAD = """
import time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset
import autoopt


class Rows(Dataset):
    def __init__(self, count=64):
        self.x = torch.randn(count, 16, generator=torch.Generator().manual_seed(0))
        self.y = torch.randint(0, 3, (count,), generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


class Stream(IterableDataset):
    def __iter__(self):
        for _ in range(20):
            yield torch.randn(16), torch.tensor(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.last = nn.Linear(32, 3)

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model, batches):
    hits = total = 0
    for x, y in batches:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return {"accuracy": hits / total}


def workload(**changes):
    fields = dict(model=Net(), train_data=Rows(), batch_size=8, loss=loss,
                  optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
                  valid_data=Rows(16), evaluate=evaluate, target=autoopt.Target("accuracy", at_least=0.9), max_steps=50)
    return autoopt.Workload(**{**fields, **changes})
"""


class Planted:
    """A module made of the common head and a test's own text; ``line(mark)`` finds ``# planted`` comments."""

    def __init__(self, path: Path, module: ModuleType) -> None:
        self.path, self.module = path, module

    def line(self, mark: str = "planted") -> int:
        return next(n for n, text in enumerate(self.path.read_text().splitlines(), 1) if f"# {mark}" in text)

    def training(self, **options: Any) -> Training:
        torch.manual_seed(0)
        return Training(self.module.build(), device="cpu", **options)


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Planted]]:
    """``plant(text)``: a module of the user's with ``build()``; nothing is left out for lack of time."""
    monkeypatch.setattr(tasks, "_GRACE", 600.0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(text: str) -> Planted:
        path = tmp_path / f"planted_{len(list(tmp_path.glob('planted_*')))}.py"
        path.write_text(HEAD + "\n\n" + textwrap.dedent(text))
        return Planted(path, module_of(path))

    yield make
    torch.set_num_threads(threads)
