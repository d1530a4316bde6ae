"""Small workloads of every shape that a script must follow: loaders, losses, optimizers, schedules."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, Sampler, TensorDataset

import autoopt


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def data(samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 8, generator=generator)
    return TensorDataset(x, (x[:, :3].argmax(1)))


def evaluate(model, batches):
    hits = total = 0
    for x, y in batches:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return {"accuracy": hits / total}


def closure(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def workload(**changes):
    given = {
        "model": Net(),
        "train_data": data(50, 1),
        "batch_size": 8,
        "loss": nn.CrossEntropyLoss(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
        "valid_data": data(20, 2),
        "evaluate": evaluate,
        "target": autoopt.Target("accuracy", at_least=0.99),
        "max_epochs": 3,
    }
    return autoopt.Workload(**{**given, **changes})


def plain():
    return workload()


def closed():
    return workload(loss=closure, max_epochs=None, max_steps=11, evaluate_every=4, clip_grad_norm=0.5)


def accumulating():
    return workload(accumulation=2, scheduler=lambda o, n: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=n))


def own_loader():
    model = Net()
    return workload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=0.01),
        train_data=DataLoader(data(50, 1), batch_size=8, shuffle=True, drop_last=True),
        batch_size=None,
        valid_data=DataLoader(data(20, 2), batch_size=5),
        scheduler=lambda o, n: torch.optim.lr_scheduler.StepLR(o, 1, 0.5),
        scheduler_interval="epoch",
    )


def given_generator():
    loader = DataLoader(data(50, 1), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7))
    return workload(
        train_data=loader,
        batch_size=None,
        scheduler=lambda o, n: torch.optim.lr_scheduler.ReduceLROnPlateau(o, "max", patience=0),
    )


def batch_sampler():
    inner = RandomSampler(data(50, 1))
    return workload(
        train_data=DataLoader(inner.data_source, batch_sampler=BatchSampler(inner, 8, False)), batch_size=None
    )


class Shuffled(Sampler):
    """A sampler of the user's own that draws from the global generator."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self):
        return iter(torch.randperm(self.samples).tolist())


def odd_sampler():
    return workload(train_data=DataLoader(data(50, 1), batch_size=8, sampler=Shuffled(50)), batch_size=None)


class Stream(IterableDataset):
    def __iter__(self):
        yield from data(40, 3)


def stream():
    return workload(train_data=Stream(), max_epochs=None, max_steps=9)


def unevaluated():
    return workload(valid_data=None, evaluate=None, target=None, max_epochs=1.5)


EVERY = (
    "plain", "closed", "accumulating", "own_loader", "given_generator", "batch_sampler", "odd_sampler", "stream",
    "unevaluated",
)  # fmt: skip


# Models for every built-in strategy: attention written by hand, in blocks that repeat, and a convolution net.


class Attention(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.qkv = nn.Sequential(nn.Linear(16, inner), nn.Linear(inner, 48))
        self.out = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).split(16, dim=2)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 4.0, dim=-1)
        return x + self.out(weights @ v)


class Attending(nn.Module):
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


def few(model, train_data):
    """Two epochs that nothing evaluates."""
    given = {"model": model, "train_data": train_data, "batch_size": 16, "max_epochs": 2}
    given |= dict.fromkeys(("valid_data", "evaluate", "target"))
    return workload(optimizer=lambda params: torch.optim.AdamW(params, lr=3e-3), **given)


def attending(inner: int = 16):
    x = torch.randn(80, 12, 16, generator=torch.Generator().manual_seed(1))
    return few(Attending(inner), TensorDataset(x, x[:, 0, :3].argmax(1)))


def convolving():
    """Runs with fewer channels, too."""
    layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    images = torch.randn(48, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
    return few(nn.Sequential(*layers, nn.Linear(8, 2)), data)
