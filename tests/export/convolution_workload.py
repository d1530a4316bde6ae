"""A convolution net that runs with fewer channels."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autoopt


def build() -> autoopt.Workload:
    images = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return autoopt.Workload(
        model=nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 8, 3),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 2),
        ),
        train_data=TensorDataset(images, (images.mean((1, 2, 3)) > 0).long()),
        batch_size=16,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        max_epochs=2,
    )
