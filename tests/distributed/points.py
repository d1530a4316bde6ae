"""A workload for several processes: points around centres, 250 of them in batches of 16, so that the last one has 10.

``POINTS_FAULT`` makes a rank fail in a step: ``kill:1``, ``hang:1``, ``raise:1``, ``slow:1``.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from autoopt import Target, Workload

SAMPLES, BATCH, FAULTY_STEP = 250, 16, 6


def points(samples: int = SAMPLES, seed: int = 1) -> TensorDataset:
    centres = torch.randn(4, 8, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(4, (samples,), generator=generator)
    return TensorDataset(centres[y] + torch.randn(samples, 8, generator=generator), y)


class Loss:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        self.calls += 1
        fault, _, rank = os.environ.get("POINTS_FAULT", "").partition(":")
        if fault and rank == os.environ.get("RANK"):
            fail(fault, self.calls)
        return F.cross_entropy(model(batch[0]), batch[1])


def fail(fault: str, call: int) -> None:
    if fault == "slow":
        time.sleep(0.02)
    if call != FAULTY_STEP:
        return
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "raise":
        raise ValueError("a bad sample")
    if fault == "hang":
        threading.Event().wait()


def evaluate(model: nn.Module, batches: Any) -> dict[str, float]:
    right = total = 0
    for x, y in batches:
        right += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return {"accuracy": right / total}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 4))


def workload(**changed: Any) -> Workload:
    given: dict[str, Any] = {
        "model": net(),
        "train_data": points(),
        "batch_size": BATCH,
        "loss": Loss(),
        "optimizer": partial(torch.optim.Adam, lr=1e-2),
        "valid_data": points(100, seed=2),
        "evaluate": evaluate,
        "target": Target("accuracy", at_least=0.99),
        "max_epochs": 3,
    }
    return Workload(**{**given, **changed})


def build() -> Workload:
    return workload()


def accumulating() -> Workload:
    return workload(accumulation=3)


def one_loader() -> Workload:
    return workload(train_data=DataLoader(points(), batch_size=BATCH, shuffle=True), batch_size=None)


def tiny_last() -> Workload:
    """The last batch of an epoch has one sample."""
    return workload(train_data=points(BATCH + 1))


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.never = net(), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def unused() -> Workload:
    return workload(model=Unused())


def method_loss(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model.forward(batch[0]), batch[1])


def by_method() -> Workload:
    return workload(loss=method_loss)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(points())


def stream() -> Workload:
    return workload(train_data=Stream(), max_epochs=None, max_steps=40)


def own_sampler() -> Workload:
    """As a user has it who starts the processes himself."""
    data = points()
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=size, rank=rank)
    return workload(train_data=DataLoader(data, batch_size=BATCH, sampler=sampler), batch_size=None)


class Synchronized(nn.BatchNorm1d):
    """Over the samples of all processes on a CPU, where torch's own refuses; the mean alone."""

    process_group: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.detach().mean(0)
        if dist.is_initialized() and (size := dist.get_world_size(self.process_group)) > 1:
            dist.all_reduce(mean, group=self.process_group)
            mean /= size
        return (x - mean) * self.weight + self.bias


def normalized() -> Workload:
    return workload(model=nn.Sequential(nn.Linear(8, 16), Synchronized(16), nn.ReLU(), nn.Linear(16, 4)))
