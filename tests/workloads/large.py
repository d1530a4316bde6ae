"""Workloads whose activations are most of their memory: for trials of what does not fit."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autoopt

WIDTH = 64
BLOCKS = 6
BATCH = 256


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def accuracy(model: nn.Module, batches: Any) -> dict[str, float]:
    right = total = 0
    for inputs, labels in batches:
        right += int((model(inputs).argmax(1) == labels).sum())
        total += len(labels)
    return {"accuracy": right / total}


def build(norm: bool = False) -> autoopt.Workload:
    def part() -> nn.Module:
        middle = nn.BatchNorm1d(WIDTH) if norm else nn.Identity()
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), middle, nn.Linear(WIDTH, WIDTH), nn.Tanh())

    inputs = torch.randn(4096 + 256, WIDTH, generator=torch.Generator().manual_seed(0))
    labels = (inputs[:, :8].sum(1) > 0).long()
    return autoopt.Workload(
        model=nn.Sequential(*(part() for _ in range(BLOCKS)), nn.Linear(WIDTH, 2)),
        train_data=TensorDataset(inputs[:4096], labels[:4096]),
        batch_size=BATCH,
        loss=loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-3),
        valid_data=TensorDataset(inputs[4096:].clone(), labels[4096:].clone()),
        evaluate=accuracy,
        target=autoopt.Target("accuracy", at_least=0.8),
        max_epochs=10,
    )


def normed() -> autoopt.Workload:
    """With BatchNorm, whose batch must not be cut."""
    return build(norm=True)
