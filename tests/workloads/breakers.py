"""Strategies that are faster and spoil the training, and the workload that they spoil.

Each would be kept by whoever looks at throughput alone. ``BREAKERS`` is the table that tests run over.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from autoopt.setup import Setup
from autoopt.strategy import Risk
from autoopt.workload import Target, Workload
from benchmarks.truth.quality_changes import Change, hooked

FEATURES, CLASSES, BATCH = 16, 4, 32
TINY_LOSS = 1e-6
"""The loss is this much smaller than usual; Adam does not mind, fp16 gradients vanish."""


def points(samples: int, seed: int) -> TensorDataset:
    """Noisy points around class centres that the seed does not change."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(CLASSES, (samples,), generator=generator)
    x = 0.45 * centres[y] + torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(x, y)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return TINY_LOSS * F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: nn.Module, batches: Iterable[Any]) -> dict[str, float]:
    """Accuracy; looks at so many batches only where ``BREAKERS_BATCHES`` says so."""
    most = int(os.environ.get("BREAKERS_BATCHES", "1000000"))
    right = total = 0
    for number, (x, y) in enumerate(batches):
        if number >= most:
            break
        right += int((model(x).argmax(dim=1) == y).sum())
        total += len(y)
    return {"accuracy": right / total}


def build() -> Workload:
    return Workload(
        model=nn.Sequential(nn.Linear(FEATURES, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, CLASSES)),
        train_data=points(4096, seed=1),
        batch_size=BATCH,
        loss=loss,
        optimizer=partial(torch.optim.AdamW, lr=3e-3, eps=1e-15),
        valid_data=points(1024, seed=2),
        evaluate=evaluate,
        target=Target("accuracy", at_least=0.82),
        max_steps=256,
        evaluate_every=32,
    )


class Augmented(Dataset[Any]):
    """Adds noise that is drawn anew whenever a sample is read."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        x, y = self.inner[index]
        return x + 0.1 * torch.randn(FEATURES), y


def build_augmented() -> Workload:
    workload = build()
    return dataclasses.replace(workload, train_data=Augmented(points(1024, seed=1)))


@dataclass(frozen=True)
class Shuffled:
    """A share of the labels belongs to other samples."""

    share: float = 0.25

    def __call__(self, dataset: TensorDataset) -> Dataset[Any]:
        x, y = dataset.tensors
        y = y.clone()
        count = int(self.share * len(y))
        y[:count] = y[torch.randperm(count, generator=torch.Generator().manual_seed(3))]
        return TensorDataset(x, y)


def skip_every_second(inner: Callable[..., Any]) -> Callable[..., Any]:
    calls = [0]

    def skipping(model: nn.Module, batch: Any) -> torch.Tensor:
        calls[0] += 1
        if calls[0] % 2 or not model.training:
            return inner(model, batch)
        with torch.no_grad():
            value = inner(model, batch)
        return value.requires_grad_()

    return skipping


def easiest_half(inner: Callable[..., Any]) -> Callable[..., Any]:
    def easy(model: nn.Module, batch: Any) -> torch.Tensor:
        x, y = batch
        with torch.no_grad():
            keep = F.cross_entropy(model(x), y, reduction="none").argsort()[: max(len(y) // 2, 1)]
        return inner(model, (x[keep], y[keep]))

    return easy


def truncate(optimizer: torch.optim.Optimizer, step: int) -> None:
    """Keeps the first row of each gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.dim() > 1:
                parameter.grad[1:] = 0


def freeze(model: nn.Sequential) -> nn.Sequential:
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)
    return model


class _HalfGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.half().float()


class _Half(nn.Module):
    """A layer whose gradients pass through fp16, as autocast without a gradient scaler has them."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _HalfGradient.apply(self.inner(x))


def halve(model: nn.Sequential) -> nn.Sequential:
    return nn.Sequential(*(_Half(layer) if isinstance(layer, nn.Linear) else layer for layer in model))


def breaker(name: str, change: Callable[[Setup], Setup], risk: Risk = Risk.NUMERIC) -> Change:
    return Change(name, build, change, risk)


BREAKERS = (
    breaker("shuffled_labels", lambda setup: setup.with_dataset(Shuffled())),
    breaker("skipped_backward", lambda setup: setup.with_loss(skip_every_second)),
    breaker("huge_learning_rate", lambda setup: setup.with_batch(learning_rate_factor=30.0), Risk.TRAINING),
    breaker("truncated_gradients", hooked(truncate)),
    breaker("easy_samples_only", lambda setup: setup.with_loss(easiest_half)),
    breaker("fewer_evaluated", lambda setup: setup.with_flags(env={"BREAKERS_BATCHES": "4"})),
    breaker("frozen_weights", lambda setup: setup.with_model(freeze)),
    breaker("huge_batch", lambda setup: setup.with_batch(size=32 * BATCH), Risk.TRAINING),
    breaker("fp16_without_scaling", lambda setup: setup.with_model(halve)),
)
