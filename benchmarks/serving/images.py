"""Handwritten digits as larger images, with a convolution net; and the same pretrained, for changes of the model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import autoopt

SIDE = 32


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


def evaluate(model: Any, batches: Any) -> dict[str, float]:
    hits = total = 0
    for images, labels in batches:
        hits += int((model(images).argmax(1) == labels).sum())
        total += len(labels)
    return {"accuracy": hits / total}


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
        evaluate=evaluate,
        target=autoopt.Target("accuracy", mode="max"),
        max_epochs=6,
    )


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
