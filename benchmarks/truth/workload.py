"""The live workload of truth.py: a small model whose dataset burns a known amount of work per sample.

``Burn`` is the planted strategy: it removes a known share of that work. A step costs ``rest + left`` in units
of the whole work, so that the true effect follows from the amounts and from ``rest`` alone, which is measured
once and long, in CPU seconds, within processes that turn the work on and off, apart from every comparison.

    python -m benchmarks.truth.workload      # ``rest`` as one process sees it
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import process_time
from typing import Any, ClassVar

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


def left_for(effect: float, rest: float) -> float:
    """The share of the work that must be left for a true speedup."""
    left = (rest + 1.0) / effect - rest
    if left < 0:
        raise ValueError(f"a speedup of {effect} needs less than no work: the rest of a step is {rest:.3f} of it")
    return left


def rest_of_a_step(pairs: int = 40, steps: int = 12) -> float:
    """CPU seconds of a step without work over those of the work; one process that turns it on and off."""
    from autoopt.benchmark.training import Training

    training = Training(build(), device="cpu")
    dataset: Any = training.loader.loader.dataset
    shares = []
    for _ in range(pairs):
        seconds = {}
        for work in (0, WORK):
            dataset.work = work
            training.step(training.next())
            began = process_time()
            for _ in range(steps):
                training.step(training.next())
            seconds[work] = process_time() - began
        shares.append(seconds[0] / (seconds[WORK] - seconds[0]))
    return float(np.median(shares))


def calibrate(processes: int = 5) -> dict[str, Any]:
    """``rest`` over several processes, with its standard error."""
    command = [sys.executable, str(Path(__file__).resolve())]
    found = [
        float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1]))
        for _ in range(processes)
    ]
    error = float(np.std(found, ddof=1) / processes**0.5)
    return {"rest": float(np.mean(found)), "standard_error": error, "by_process": found, "work": WORK}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(rest_of_a_step()) + "\n")
