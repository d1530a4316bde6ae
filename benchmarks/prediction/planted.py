"""Workloads in each of which one stage was made the bottleneck by a known amount, at a marked line."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import autoopt
from autoopt.setup import Setup

BATCH = 8
PLANT = 0.008  # seconds per step: several times what the rest of the step takes


def _rounds_per_second() -> float:
    """Numbers that are added up in a second of CPU time, as the fastest of several short tries tells."""
    best = 0.0
    for _ in range(20):
        start = time.thread_time()
        sum(range(20_000))
        best = max(best, 20_000 / (time.thread_time() - start))
    return best


SPEED = _rounds_per_second()


def work(seconds: float) -> range:
    """Numbers to add up for so many seconds of a core: a built-in's work, so that the chain ends where it is called."""
    return range(max(1, int(seconds * SPEED)))


class Rows(Dataset):
    """Rows of numbers; a subclass makes a sample dear."""

    def __init__(self, count: int = 256) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(count, 64, generator=generator)
        self.y = torch.randint(0, 10, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        return self.x[index], self.y[index]


class Waiting(Rows):
    def __getitem__(self, index: int) -> Any:
        time.sleep(PLANT / BATCH)  # planted: storage
        return super().__getitem__(index)


class Preparing(Rows):
    def __init__(self, rounds: range | None = None) -> None:
        super().__init__()
        self.rounds = work(PLANT / BATCH) if rounds is None else rounds

    def __getitem__(self, index: int) -> Any:
        sum(self.rounds)  # planted: preparation
        return super().__getitem__(index)


def collate(samples: list[Any], rounds: range | None = None) -> Any:
    sum(rounds or work(PLANT))  # planted: collate
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.middle = nn.Linear(256, 256)
        self.last = nn.Linear(256, 10)

    def forward(self, x: Any) -> Any:
        return self.last(F.relu(self.middle(F.relu(self.first(x)))))


class SlowForward(Net):
    def forward(self, x: Any) -> Any:
        sum(work(PLANT))  # planted: forward
        return super().forward(x)


class Dear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        sum(work(PLANT))  # planted: backward
        return gradient


class SlowBackward(Net):
    def forward(self, x: Any) -> Any:
        return Dear.apply(super().forward(x))


class SlowOptimizer(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        sum(work(PLANT))  # planted: optimizer
        return super().step(closure)


class Heavy(Net):
    """Much to save, little to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(5_000_000))


class Tiny(nn.Module):
    """A hundred operators on almost nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(100))
        self.last = nn.Linear(4, 10)

    def forward(self, x: Any) -> Any:
        x = x[:, :4]
        for scale in self.scales:
            x = x * scale
        return self.last(x)


class Square(nn.Module):
    """Nothing but large matrix products, at which the machine is best."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(3)))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Wide(Dataset):
    def __init__(self, count: int = 8192) -> None:
        self.count = count
        self.x = torch.randn(4, 512, 2048, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.x[index % 4]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.x[index % 4] for index in indices]


class SlowStep:
    """A training step with Python of the user's own around it."""

    def __call__(self, step: Any) -> Any:
        def slow(batches: Any) -> Any:
            sum(work(PLANT))  # planted: host
            return step(batches)

        return slow


def loss(model: Any, batch: Any) -> Any:
    return F.cross_entropy(model(batch[0]), batch[1])


def evaluate(model: Any, batches: Any) -> dict[str, float]:
    hits = [float((model(x).argmax(1) == y).float().mean()) for x, y in batches]
    return {"accuracy": sum(hits) / len(hits)}


def slow_evaluate(model: Any, batches: Any) -> dict[str, float]:
    result = evaluate(model, batches)
    sum(work(PLANT * 2))  # planted: evaluate
    return result


def workload(**changes: Any) -> autoopt.Workload:
    fields: dict[str, Any] = {
        "model": Net(), "train_data": Rows(), "batch_size": BATCH, "loss": loss,
        "optimizer": lambda params: torch.optim.SGD(params, lr=1e-3), "valid_data": Rows(16), "evaluate": evaluate,
        "target": autoopt.Target("accuracy", at_least=0.99), "max_steps": 10_000, "evaluate_every": 1_000,
    }  # fmt: skip
    return autoopt.Workload(**{**fields, **changes})


@dataclass(frozen=True)
class Plant:
    """A planted pipeline, and the bottleneck that must be named. ``bottleneck``: any of these; empty: none."""

    name: str
    build: Callable[[], autoopt.Workload]
    bottleneck: tuple[str, ...]
    kind: str | None
    marked: bool = True
    setup: Setup = field(default_factory=Setup)
    all_threads: bool = False
    best_precision: bool = False

    @property
    def line(self) -> int | None:
        """Where it was planted."""
        if not self.marked:
            return None
        lines = Path(__file__).read_text(encoding="utf-8").splitlines()
        return next((n for n, text in enumerate(lines, 1) if f"# planted: {self.name}" in text), None)


def plants() -> Iterator[Plant]:
    """Those that the CPU can have; pinning and copying need a device."""
    yield Plant("storage", lambda: workload(train_data=Waiting()), ("storage",), "storage")
    yield Plant("preparation", lambda: workload(train_data=Preparing()), ("preparation",), "preparation")
    own = {"batch_size": None}
    yield Plant(
        "collate",
        lambda: workload(train_data=DataLoader(Rows(), batch_size=BATCH, collate_fn=collate), **own),
        ("collate",),
        "preparation",
    )
    yield Plant("forward", lambda: workload(model=SlowForward()), ("forward",), None)
    yield Plant("backward", lambda: workload(model=SlowBackward()), ("backward",), None)
    optimizer = {"optimizer": lambda params: SlowOptimizer(params, lr=1e-3)}
    yield Plant("optimizer", lambda: workload(**optimizer), ("optimizer",), "optimizer")
    yield Plant("host", workload, ("host",), "host", marked=False, setup=Setup().with_step(SlowStep()))
    yield Plant("evaluate", lambda: workload(evaluate=slow_evaluate, evaluate_every=2), ("evaluate",), "interruption")
    yield Plant("checkpoint", lambda: workload(model=Heavy()), ("checkpoint",), "interruption", False,
                Setup().with_cadence(checkpoint_every=2))  # fmt: skip
    yield Plant("launches", lambda: workload(model=Tiny()), ("forward", "backward"), "launch overhead", False)
    yield Plant("two at once", lambda: workload(train_data=Preparing(), model=SlowForward()),
                ("preparation", "forward"), None, False)  # fmt: skip
    yield Plant("none", square, (), None, False, all_threads=True, best_precision=True)


def square() -> autoopt.Workload:
    """At its ceiling, if it trains in the precision that this machine is fastest at."""
    fields = {"model": Square(), "train_data": Wide(), "batch_size": 1, "valid_data": Wide(4),
              "evaluate": lambda model, batches: {"loss": sum(float(square_loss(model, x)) for x in batches)},
              "target": autoopt.Target("loss", mode="min"), "loss": square_loss, "evaluate_every": 1_000}  # fmt: skip
    return workload(**fields)


def square_loss(model: Any, batch: Any) -> Any:
    return model(batch).square().mean()


ROUNDS = range(40_000)
"""A sample's planted work where processes are compared: the same in each, whatever the machine does meanwhile."""


def waiting() -> autoopt.Workload:
    return workload(train_data=Waiting())


def preparing() -> autoopt.Workload:
    return workload(train_data=Preparing(ROUNDS))


def collating() -> autoopt.Workload:
    own = functools.partial(collate, rounds=range(BATCH * len(ROUNDS)))
    return workload(train_data=DataLoader(Rows(), batch_size=BATCH, collate_fn=own), batch_size=None)


def tiny() -> autoopt.Workload:
    return workload(model=Tiny())
