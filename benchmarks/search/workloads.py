"""Small workloads of the kinds that people bring, on generated data: what a person finds by hand should be found.

``autoopt optimize benchmarks/search/workloads.py:gpt --budget 3m``; also ``images``, ``lstm``, ``convolution`` and
``storage``.
"""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import autoopt

TEXT = 64
VOCABULARY = 64
READ_SECONDS = 0.004
"""Seconds of reading one sample from slow storage."""


def _accuracy(model: nn.Module, batches: Any) -> dict[str, float]:
    right = total = 0
    for inputs, labels in batches:
        right += int((model(inputs).argmax(-1) == labels).sum())
        total += labels.numel()
    return {"accuracy": right / total}


def _workload(model: nn.Module, train: Dataset[Any], valid: Dataset[Any], batch: int, steps: int) -> autoopt.Workload:
    return autoopt.Workload(
        model=model,
        train_data=train,
        valid_data=valid,
        batch_size=batch,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten()),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        evaluate=_accuracy,
        target=autoopt.Target("accuracy"),
        max_steps=steps,
    )


def _text(count: int, seed: int) -> TensorDataset:
    """Periodic sequences of letters with noise: the next letter can be learnt."""
    random = torch.Generator().manual_seed(seed)
    period = torch.randint(3, 9, (count, 1), generator=random)
    start = torch.randint(0, VOCABULARY, (count, 1), generator=random)
    letters = (start + (torch.arange(TEXT + 1)[None, :] % period) * 5) % VOCABULARY
    return TensorDataset(letters[:, :-1].clone(), letters[:, 1:].clone())


class PlainAttention(nn.Module):
    """Attention as it is written by hand: scores, mask, softmax."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(TEXT, TEXT)))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / (width // self.heads) ** 0.5)
        scores = scores.masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        y = F.softmax(scores, dim=-1) @ v
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = PlainAttention(width, heads)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.feed(self.second(x))


class Gpt(nn.Module):
    def __init__(self, width: int = 64, heads: int = 8, layers: int = 3) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(TEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[1], device=letters.device)
        return self.head(self.blocks(self.letters(letters) + self.places(places)))


class Lstm(nn.Module):
    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.letters, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)

    def forward(self, letters: Tensor) -> Tensor:
        return self.head(self.lstm(self.letters(letters))[0])


class Convolution(nn.Module):
    def __init__(self, classes: int = 8, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, width), (width, 2 * width), (2 * width, 2 * width)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        self.body, self.head = nn.Sequential(*layers), nn.LazyLinear(classes)
        self.head(self.body(torch.zeros(2, 3, 32, 32)).flatten(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).flatten(1))


def _pictures(count: int, seed: int, side: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Stripes in eight directions, with noise."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 8, count)
    y, x = np.mgrid[0:side, 0:side] / side
    angle = labels[:, None, None] * np.pi / 8
    waves = np.sin(2 * np.pi * 5 * (x * np.cos(angle) + y * np.sin(angle)) + random.uniform(0, 6, (count, 1, 1)))
    noisy = 128 + 60 * waves[..., None] + 25 * random.standard_normal((count, side, side, 3))
    return noisy.clip(0, 255).astype(np.uint8), labels


class Jpegs(Dataset[Any]):
    """JPEG files in memory, decoded and shrunk sample by sample."""

    def __init__(self, count: int, seed: int, side: int = 160) -> None:
        from PIL import Image

        pictures, self.labels = _pictures(count, seed, side)
        self.files = []
        for picture in pictures:
            file = io.BytesIO()
            Image.fromarray(picture).save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        image = Image.open(io.BytesIO(self.files[index])).convert("RGB").resize((32, 32), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.asarray(image, dtype=np.float32) / 255).permute(2, 0, 1), int(self.labels[index])


class SlowStorage(Dataset[Any]):
    """Samples behind a storage that takes its time."""

    def __init__(self, count: int, seed: int) -> None:
        pictures, labels = _pictures(count, seed, 32)
        self.pictures, self.labels = torch.from_numpy(pictures).permute(0, 3, 1, 2), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(READ_SECONDS)
        return self.pictures[index].float() / 255, int(self.labels[index])


def gpt() -> autoopt.Workload:
    return _workload(Gpt(), _text(4096, 0), _text(256, 1), batch=32, steps=1500)


def lstm() -> autoopt.Workload:
    return _workload(Lstm(), _text(4096, 0), _text(256, 1), batch=32, steps=1500)


def images() -> autoopt.Workload:
    return _workload(Convolution(), Jpegs(1024, 0), Jpegs(128, 1), batch=32, steps=600)


def convolution() -> autoopt.Workload:
    pictures, labels = _pictures(2048, 0, 32)
    checks, answers = _pictures(256, 1, 32)
    train = TensorDataset(torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(labels))
    valid = TensorDataset(torch.from_numpy(checks).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(answers))
    return _workload(Convolution(), train, valid, batch=64, steps=600)


def storage() -> autoopt.Workload:
    return _workload(Convolution(), SlowStorage(1024, 0), SlowStorage(128, 1), batch=32, steps=600)
