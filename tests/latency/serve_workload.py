"""A small image classifier whose weights are good enough at once: labels are what the model itself says, mostly."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autoopt


def evaluate(model: Any, batches: Any) -> dict[str, float]:
    hits = total = 0
    for images, labels in batches:
        hits += int((model(images).argmax(1) == labels).sum())
        total += len(labels)
    return {"accuracy": hits / total}


def build() -> autoopt.Workload:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 4)
    )
    images = torch.randn(600, 3, 12, 12, generator=generator)
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[:60] = torch.randint(4, (60,), generator=generator)
    whole = TensorDataset(images, labels)
    return autoopt.Workload(
        model=model,
        train_data=whole,
        batch_size=32,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
        valid_data=whole,
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=0.9),
        max_epochs=1,
    )


def no_validation() -> autoopt.Workload:
    workload = build()
    workload.valid_data = workload.evaluate = workload.target = None
    return workload
