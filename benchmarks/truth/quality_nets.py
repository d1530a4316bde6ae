"""Small workloads of several kinds, on which quality cases are judged: some hundred steps take a second or two.

Every builder takes no arguments, so that a trial can name it: ``benchmarks/truth/quality_nets.py:images``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

from autoopt.workload import Target, Workload
from benchmarks.truth import accuracy

CLASSES = 5
SAMPLES, VALID = 1024, 512
STEPS = 256


def _labels(samples: int, seed: int) -> tuple[torch.Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CLASSES, (samples,), generator=generator), generator


def _centres(*shape: int) -> torch.Tensor:
    return torch.randn(CLASSES, *shape, generator=torch.Generator().manual_seed(99))


def pictures(samples: int, seed: int) -> TensorDataset:
    """Noisy 3 x 12 x 12 pictures of smooth class patterns."""
    y, generator = _labels(samples, seed)
    pattern = F.interpolate(_centres(3, 4, 4), size=(12, 12), mode="bilinear")
    return TensorDataset(0.25 * pattern[y] + torch.randn(samples, 3, 12, 12, generator=generator), y)


def rows(samples: int, seed: int) -> TensorDataset:
    """Rows of 24 noisy features."""
    y, generator = _labels(samples, seed)
    return TensorDataset(0.4 * _centres(24)[y] + torch.randn(samples, 24, generator=generator), y)


def sentences(samples: int, seed: int) -> TensorDataset:
    """Sequences of 16 tokens of 32, of which each class prefers some."""
    y, generator = _labels(samples, seed)
    likely = torch.softmax(1.2 * _centres(32), dim=1)[y]
    return TensorDataset(torch.multinomial(likely, 16, replacement=True, generator=generator), y)


def cross_entropy(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def convolutions(width: int = 16) -> nn.Sequential:
    """Three convolutions with batch norm, and a linear head."""
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(((3, width), (width, width), (width, 2 * width))):
        stride = 2 if place else 1
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, CLASSES))


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, CLASSES))


class Recurrent(nn.Module):
    """An LSTM over token embeddings; the last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(32, 24), nn.LSTM(24, 32, batch_first=True)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class Attention(nn.Module):
    """Self-attention by hand, or by torch's fused function where ``fused`` is set."""

    def __init__(self, width: int, fused: bool = False) -> None:
        super().__init__()
        self.fused, self.qkv, self.out = fused, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = torch.softmax(q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


class Transformer(nn.Module):
    """Two blocks with dropout; the mean over tokens is classified."""

    def __init__(self, width: int = 32, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.attention = nn.ModuleList(Attention(width) for _ in range(2))
        self.mlp = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width),
                nn.Dropout(dropout),
            )
            for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for attention, mlp in zip(self.attention, self.mlp, strict=True):
            x = x + attention(x)
            x = x + mlp(x)
        return self.head(x.mean(dim=1))


class Adversaries(nn.Module):
    """A generator of rows and its discriminator."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24))
        self.discriminator = nn.Sequential(nn.Linear(24, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.discriminator(rows)


def adversarial(model: Any, batch: Any) -> torch.Tensor:
    """Both losses in one step: the generator's gradient passes a discriminator that is held."""
    real = batch[0]
    fake = model.generator(torch.sin(real[:, :8] * 17.0))  # noise that the batch determines
    reported, seen = model.discriminator(real), model.discriminator(fake.detach())
    held = {name: value.detach() for name, value in model.discriminator.named_parameters()}
    fooled = torch.func.functional_call(model.discriminator, held, (fake,))
    ones, zeros = torch.ones_like(reported), torch.zeros_like(reported)
    score = F.binary_cross_entropy_with_logits
    return score(reported, ones) + score(seen, zeros) + score(fooled, ones)


def discrimination(model: Any, batches: Iterable[Any]) -> dict[str, float]:
    """How far means of real and made-up rows lie from each other."""
    real = torch.cat([batch[0] for batch in batches])
    fake = model.generator(torch.sin(real[:, :8] * 17.0)).float()
    return {"distance": float((real.mean(0) - fake.mean(0)).norm())}


class Noised(Dataset[Any]):
    """Pictures with noise that is drawn anew whenever one is read."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        x, y = self.inner[index]
        return x + 0.1 * torch.randn(x.shape), y


def _workload(model: nn.Module, data: Any, batch: int, optimizer: Any, **given: Any) -> Workload:
    fields: dict[str, Any] = {
        "loss": cross_entropy,
        "evaluate": accuracy,
        "target": Target("accuracy"),
        "max_steps": STEPS,
        "evaluate_every": 32,
        **given,
    }
    return Workload(
        model=model,
        train_data=data(SAMPLES, 1),
        valid_data=data(VALID, 2),
        batch_size=batch,
        optimizer=optimizer,
        **fields,
    )


SGD = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4)
ADAM = partial(torch.optim.AdamW, lr=2e-3)


def images() -> Workload:
    return _workload(convolutions(), pictures, 32, SGD)


def images_8() -> Workload:
    return _workload(convolutions(), pictures, 8, partial(SGD, lr=0.01))


def by_probabilities(model: nn.Module, batch: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A loss of probabilities, each class by itself, of large logits; rounding them to 0 and 1 leaves no gradient."""
    reported, wanted = torch.sigmoid(40 * model(batch[0])).to(dtype), F.one_hot(batch[1], CLASSES).to(dtype)
    right, wrong = torch.log(reported.clamp(min=1e-6)), torch.log((1 - reported).clamp(min=1e-6))
    return -(wanted * right + (1 - wanted) * wrong).mean().float()


def images_by_probabilities() -> Workload:
    return _workload(convolutions(), pictures, 32, SGD, loss=by_probabilities)


def images_scheduled() -> Workload:
    def halved(optimizer: Any, total_steps: int) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=max(total_steps // 2, 1), gamma=0.1)

    return _workload(convolutions(), pictures, 32, SGD, scheduler=halved)


def images_clipped() -> Workload:
    return _workload(convolutions(), pictures, 32, SGD, clip_grad_norm=0.5)


def images_augmented() -> Workload:
    def noised(samples: int, seed: int) -> Any:
        return Noised(pictures(samples, seed)) if seed == 1 else pictures(samples, seed)

    return _workload(convolutions(), noised, 32, SGD)


def tabular() -> Workload:
    model = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 5))
    return _workload(model, rows, 64, ADAM)


def tabular_4() -> Workload:
    """Batches of four at a large learning rate: noise sets the speed."""
    return _workload(two_layers(), rows, 4, partial(torch.optim.SGD, lr=0.1))


def tabular_16() -> Workload:
    """Small batches and plain descent at a small learning rate, which averages noise out."""
    return _workload(two_layers(), rows, 16, partial(torch.optim.SGD, lr=0.03))


def tabular_48() -> Workload:
    """1,024 samples in batches of 48: the last one of an epoch holds 16."""
    return _workload(two_layers(), rows, 48, ADAM)


def tabular_512() -> Workload:
    return _workload(two_layers(), partial(_more, rows), 512, partial(ADAM, lr=5e-3))


def _more(data: Any, samples: int, seed: int) -> Any:
    return data(8 * samples if seed == 1 else samples, seed)


def recurrent() -> Workload:
    return _workload(Recurrent(), sentences, 32, ADAM)


def transformer() -> Workload:
    return _workload(Transformer(), sentences, 32, ADAM)


def gan() -> Workload:
    return _workload(
        Adversaries(), rows, 64, partial(torch.optim.Adam, lr=1e-3, betas=(0.5, 0.9)),
        loss=adversarial, evaluate=discrimination, target=Target("distance", at_most=0.0),
    )  # fmt: skip
