"""A workload with attention written by hand, in blocks that repeat, beside a convolution."""

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


def data(samples: int, seed: int) -> TensorDataset:
    x = torch.randn(samples, 12, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, x[:, 0, :3].argmax(1))


def build(inner: int = 16) -> autoopt.Workload:
    return autoopt.Workload(
        model=Net(inner),
        train_data=data(80, 1),
        batch_size=16,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3),
        max_epochs=2,
    )
