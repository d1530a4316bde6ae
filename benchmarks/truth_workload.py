"""The live workload of truth.py: a small model whose dataset burns a known amount of work per sample.

``Burn`` is the planted strategy: it removes a known share of that work, so that its true effect
follows from the seconds that a step takes without any work at all.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset

import autoopt
from autoopt.records import JsonDict
from autoopt.setup import Setup
from autoopt.strategy import Risk, Strategy

BATCH = 8
WORK = int(os.environ.get("TRUTH_WORK", "40"))
"""Sorts of a small array per sample."""


class Burning(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random points; each costs ``work`` sorts to fetch (a part of one at random where it is no whole number)."""

    def __init__(self, work: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(4096, 16, generator=generator)
        self.y = (self.x[:, 0] > 0).long()
        self.work = work
        self.noise = np.random.default_rng(0).standard_normal(4096)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        whole, part = divmod(self.work, 1.0)
        # The fraction falls on samples by their number, so that the mean work is exact and nothing is drawn.
        for _ in range(int(whole) + (index % 1000 < 1000 * part)):
            np.sort(self.noise)
        return self.x[index], self.y[index]


def build() -> autoopt.Workload:
    return autoopt.Workload(
        model=nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)),
        train_data=Burning(WORK),
        batch_size=BATCH,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=0.01),
        max_steps=100_000,
        setup=Setup().with_flags(threads=1),
    )


@dataclass(frozen=True)
class Share:
    """Leaves this share of the work."""

    left: float

    def __call__(self, dataset: Burning) -> Burning:
        return Burning(dataset.work * self.left)


class Burn(Strategy):
    """Removes work from the dataset; ``{"left": 0.5}`` leaves half of it."""

    name = "burn"
    stages: ClassVar[frozenset[str]] = frozenset({"dataset"})
    risk = Risk.EXACT

    def apply(self, setup: Setup, setting: JsonDict) -> Setup:
        return setup.with_dataset(Share(float(setting["left"])))
