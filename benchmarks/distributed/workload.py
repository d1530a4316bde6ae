"""The same training twice: as ``build()`` for autoopt, and as parts for the script by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from autoopt import Workload

SAMPLES, BATCH, WIDTH = 16_384, 512, 512


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(
        torch.randn(SAMPLES, 64, generator=generator), torch.randint(8, (SAMPLES,), generator=generator)
    )


def net() -> nn.Module:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 8))


optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9)


def loss(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def build() -> Workload:
    return Workload(model=net(), train_data=data(), batch_size=BATCH, loss=loss, optimizer=optimizer, max_epochs=10)
