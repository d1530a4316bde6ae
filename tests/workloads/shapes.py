"""Workloads of the shapes that users have: own sampler, stream, dict batch, BatchNorm and dropout, no target value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler, get_worker_info

import autoopt

FEATURES, CLASSES = 16, 4


def points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=generator)
    return x, (x[:, :CLASSES] + 0.1 * torch.randn(count, CLASSES, generator=generator)).argmax(1)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, CLASSES)
    )


def evaluate(model: nn.Module, batches: Any) -> dict[str, float]:
    hits = total = 0
    for x, y in batches:
        hits += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return {"accuracy": hits / total}


def made(**changes: Any) -> autoopt.Workload:
    fields: dict[str, Any] = {
        "model": network(),
        "train_data": TensorDataset(*points(2048, 0)),
        "batch_size": 32,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": lambda params: torch.optim.AdamW(params, lr=3e-3),
        "valid_data": TensorDataset(*points(512, 1)),
        "evaluate": evaluate,
        "target": autoopt.Target("accuracy", at_least=0.85),
        "max_epochs": 40,
    }
    return autoopt.Workload(**{**fields, **changes})


def own_sampler() -> autoopt.Workload:
    data = TensorDataset(*points(2048, 0))
    sampler = WeightedRandomSampler(torch.ones(2048).double().tolist(), 2048)
    return made(train_data=DataLoader(data, batch_size=32, sampler=sampler, drop_last=True), batch_size=None)


class Stream(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """A stream that shares its samples out between workers."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        x, y = points(2048, 0)
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter([(x[i], y[i]) for i in range(first, len(x), step)])


def stream() -> autoopt.Workload:
    return made(train_data=Stream(), max_epochs=None, max_steps=2000, evaluate_every=64)


class Dicts(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, count: int, seed: int) -> None:
        self.x, self.y = points(count, seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"features": self.x[index], "label": self.y[index]}


def dict_loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["features"]), batch["label"])


def dict_evaluate(model: nn.Module, batches: Any) -> dict[str, float]:
    return evaluate(model, ((batch["features"], batch["label"]) for batch in batches))


def dict_batch() -> autoopt.Workload:
    return made(train_data=Dicts(2048, 0), valid_data=Dicts(512, 1), loss=dict_loss, evaluate=dict_evaluate)


def scheduled() -> autoopt.Workload:
    return made(
        scheduler=lambda optimizer, total_steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
    )


def no_target_value() -> autoopt.Workload:
    return made(target=autoopt.Target("accuracy"), max_epochs=10)
