"""Handwritten digits as larger images, with a convolution net; and the same pretrained, for changes of the model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autoopt
from autoopt.records.writing import replacing
from benchmarks.truth import accuracy

SIDE = 32
TEACHER, STUDENT = "AUTOOPT_BENCHMARK_TEACHER", "AUTOOPT_BENCHMARK_STUDENT"
"""Environment variables: files of weights."""
EPOCHS = 6


def net(width: int = 48) -> nn.Module:
    """Four convolutions, batch normalization, and a linear head."""
    layers: list[nn.Module] = []
    channels = 1
    for place, out in enumerate((width, width, 2 * width, 2 * width)):
        layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if place % 2 else []
        channels = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * channels, 10))


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Halves for training and validation, by a fixed shuffle."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    images = F.interpolate(images, (SIDE, SIDE), mode="bilinear")
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], torch.tensor(data.target)[order]
    half = len(images) // 2
    return TensorDataset(images[:half], labels[:half]), TensorDataset(images[half:], labels[half:])


def rate(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-3)


def build() -> autoopt.Workload:
    """The net, untrained."""
    train, valid = digits()
    return autoopt.Workload(
        model=net(),
        train_data=train,
        batch_size=32,
        loss=nn.CrossEntropyLoss(),
        optimizer=rate,
        valid_data=valid,
        evaluate=accuracy,
        target=autoopt.Target("accuracy", mode="max"),
        max_epochs=6,
    )


def wide() -> autoopt.Workload:
    """The same with a target."""
    workload = build()
    workload.target, workload.max_epochs, workload.evaluate_every = autoopt.Target("accuracy", at_least=0.95), 12, 14
    return workload


def teacher() -> autoopt.Workload:
    """The same from trained weights, which have the target from the first step."""
    workload = wide()
    workload.model.load_state_dict(_weights(TEACHER))  # type: ignore[union-attr]
    return workload


def student() -> autoopt.Workload:
    """A net of half the width, from weights that were distilled."""
    workload = build()
    workload.model = net(24)
    workload.model.load_state_dict(_weights(STUDENT))
    return workload


def _weights(variable: str) -> Any:
    if not os.environ.get(variable):
        raise RuntimeError(f"{variable} names no file: python -m benchmarks.serving makes it")
    return torch.load(os.environ[variable], weights_only=True)


def train_teacher(path: Path) -> dict[str, float]:
    """Trains the net and writes its weights; its accuracy."""
    torch.manual_seed(0)
    workload = build()
    return _trained(workload, workload.model, path)  # type: ignore[arg-type]


def distilled(checkpoint: str, path: Path) -> dict[str, float]:
    """Trains a net of half the width towards one that ``autoopt train`` has trained, as the strategy does."""
    from autoopt.latency.tasks import load_weights
    from autoopt_model.distillation import towards_teacher, with_teacher

    torch.manual_seed(0)
    workload, wise, narrow = build(), net(), net(24)
    load_weights(wise, Path(checkpoint))
    criterion = nn.CrossEntropyLoss()
    workload.loss = towards_teacher(lambda model, batch: criterion(model(batch[0]), batch[1]))
    return _trained(workload, with_teacher(narrow, wise), path, narrow)


def _trained(
    workload: autoopt.Workload, model: nn.Module, path: Path, kept: nn.Module | None = None
) -> dict[str, float]:
    loss: Any = workload.loss
    if isinstance(loss, nn.Module):
        loss = lambda model, batch: workload.loss(model(batch[0]), batch[1])  # noqa: E731
    optimizer = rate(model.parameters())
    for _ in range(EPOCHS):
        for batch in DataLoader(workload.train_data, 32, shuffle=True):  # type: ignore[arg-type,var-annotated]
            loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        found = accuracy(model, DataLoader(workload.valid_data, 64))  # type: ignore[arg-type,var-annotated]
    with replacing(path) as file:
        torch.save((kept or model).state_dict(), file)
    return found


class Slow:
    """A learning rate that was never searched."""

    def __call__(self, params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=2e-3, momentum=0.9)


def untuned() -> autoopt.Workload:
    """The same by stochastic gradient descent with a small learning rate, a target, and images of half the side."""
    workload = build()
    workload.model, workload.optimizer = net(16), Slow()
    workload.train_data, workload.valid_data = (_halved(data) for data in (workload.train_data, workload.valid_data))
    workload.target, workload.max_epochs, workload.evaluate_every = autoopt.Target("accuracy", at_least=0.95), 30, 14
    return workload


def _halved(data: TensorDataset) -> TensorDataset:
    images, labels = data.tensors
    smaller: Tensor = F.avg_pool2d(images, 2)
    return TensorDataset(smaller, labels)
