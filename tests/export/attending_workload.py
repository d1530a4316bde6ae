"""A workload with attention written by hand, in blocks that repeat, and a convolution net."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autoopt


class Attention(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.qkv = nn.Sequential(nn.Linear(16, inner), nn.Linear(inner, 48))
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(16, dim=2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1)
        return x + self.out(weights @ v)


class Net(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 1, 3, padding=1)
        self.blocks = nn.ModuleList(Attention(inner) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x[:, None])[:, 0]
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def workload(model: nn.Module, data: TensorDataset) -> autoopt.Workload:
    return autoopt.Workload(
        model=model,
        train_data=data,
        batch_size=16,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        max_epochs=2,
    )


def build(inner: int = 16) -> autoopt.Workload:
    x = torch.randn(80, 12, 16, generator=torch.Generator().manual_seed(1))
    return workload(Net(inner), TensorDataset(x, x[:, 0, :3].argmax(1)))


def convolving() -> autoopt.Workload:
    """Runs with fewer channels, too."""
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
    return workload(nn.Sequential(*layers, nn.Linear(8, 2)), data)
