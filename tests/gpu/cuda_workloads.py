"""Small workloads for trials on a CUDA device; ``CUDA_FAULT`` says what goes wrong at the third step."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import autoopt

BAD_ADDRESS = "template <typename T> T touch(T x) { return *reinterpret_cast<T*>(16); }"


class Faulty(nn.Module):
    """A linear layer that breaks at its third call in the way that it was told."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.fault, self.calls = fault, 0
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3 and self.fault:
            getattr(self, self.fault)(x)
        return self.layer(x)

    def out_of_memory(self, x: torch.Tensor) -> None:
        """Takes half of what is free, again and again, down to nothing."""
        while True:
            free, _ = torch.cuda.mem_get_info()
            self.kept.append(torch.ones(max(free // 2, 1 << 20), dtype=torch.uint8, device=x.device))

    def hang(self, x: torch.Tensor) -> None:
        for _ in range(1000):  # an hour or so of a kernel that does nothing
            torch.cuda._sleep(10**10)
        torch.cuda.synchronize()

    def device_assert(self, x: torch.Tensor) -> None:
        x[torch.full((4,), 10**9, device=x.device)]
        torch.cuda.synchronize()

    def illegal_access(self, x: torch.Tensor) -> None:
        from torch.cuda.jiterator import _create_jit_fn

        _create_jit_fn(BAD_ADDRESS)(x)
        torch.cuda.synchronize()


def workload(model: nn.Module, x: torch.Tensor | None = None, **more: Any) -> autoopt.Workload:
    """Samples, and whether the mean of the first row or channel of each is above zero."""
    if x is None:
        x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    fields = {"batch_size": 8, "optimizer": partial(torch.optim.SGD, lr=0.1), "max_steps": 10_000, **more}
    data = TensorDataset(x, (x[:, 0].reshape(len(x), -1).mean(1) > 0).long())
    return autoopt.Workload(model=model, train_data=data, loss=F.cross_entropy, **fields)


def build() -> autoopt.Workload:
    return workload(Faulty(os.environ.get("CUDA_FAULT", "")))


class Large(nn.Module):
    """Holds six tenths of the device's memory: one such process fits, two do not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.held: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.held is None and x.is_cuda:
            total = torch.cuda.get_device_properties(x.device).total_memory
            self.held = torch.empty(int(0.6 * total), dtype=torch.uint8, device=x.device)
        return self.layer(x)


def build_large() -> autoopt.Workload:
    return workload(Large())
