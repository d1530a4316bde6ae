"""A small workload for the tests of the training loop, and the losses that it trains with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.setup import Setup
from autoopt.workload import Target, Workload

FEATURES, CLASSES, SAMPLES = 6, 3, 40


def data(samples: int = SAMPLES, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, FEATURES, generator=generator)
    return TensorDataset(x, x.argmax(1) % CLASSES)


def net(dropout: float = 0.5, norm: bool = True) -> nn.Module:
    layers = [nn.Linear(FEATURES, 8), nn.BatchNorm1d(8) if norm else nn.Identity(), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(8, CLASSES))


def closure(model: Any, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: Any, batches: Any) -> dict[str, float]:
    hits = total = 0
    for x, y in batches:
        hits += int((model(x).argmax(1) == y).sum())
        total += len(y)
    return {"accuracy": hits / total}


def workload(**changes: Any) -> Workload:
    seed_everything(0)
    fields: dict[str, Any] = {
        "model": net(),
        "train_data": DataLoader(data(), 8, shuffle=True, generator=torch.Generator().manual_seed(2)),
        "loss": closure,
        "optimizer": lambda params: torch.optim.AdamW(params, lr=0.01),
        "valid_data": data(20, seed=3),
        "evaluate": evaluate,
        "target": Target("accuracy", at_least=0.9),
        "max_steps": 15,
    }
    return Workload(**{**fields, **changes})


def losses(training: Training, steps: int = 15) -> list[float]:
    return [float(training.step(training.next())) for _ in range(steps)]


def trained(setup: Setup | None = None, steps: int = 15, **changes: Any) -> list[float]:
    return losses(Training(workload(**changes), setup, device="cpu"), steps)


def one_cycle(optimizer: Any, total_steps: int) -> Any:
    return OneCycleLR(optimizer, max_lr=0.1, total_steps=total_steps)


class _Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operators(run: Callable[[], object]) -> Counter[str]:
    """How often a function calls each of torch's operators."""
    with _Operators() as mode:
        run()
    return mode.calls
