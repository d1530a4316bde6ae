"""Which module of Python's library is this piece of source from? A small transformer, trained from scratch.

Train it, then serve it within a latency:

    echo '{"schema_version": 1, "changes": []}' > plan.json
    autoopt train examples/text.py:build --plan plan.json --out autoopt-runs/text
    autoopt latency examples/text.py:build --checkpoint autoopt-runs/text/checkpoint.pt --p95 2ms --max-drop 1%
"""

import importlib.util
import re
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import autoopt

MODULES = ["argparse", "ast", "difflib", "doctest", "inspect", "pickle", "statistics", "tarfile", "typing", "zipfile"]
WORDS, BYTES, VOCABULARY = 48, 100_000, 4096


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        query, key, value = (
            each(y).unflatten(2, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        x = x + self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Classifier(nn.Module):
    def __init__(self, width=128, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.randn(WORDS, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, len(MODULES))

    def forward(self, tokens):
        x = self.embedding(tokens) + self.place[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def pieces(train):
    """Pieces of source as tokens with their module; every fourth is for validation."""
    tokens, labels = [], []
    for label, name in enumerate(MODULES):
        source = Path(importlib.util.find_spec(name).origin).read_bytes()[:BYTES]
        words = [zlib.crc32(word) % VOCABULARY for word in re.findall(rb"\w+|[^\w\s]", source)]
        for number, start in enumerate(range(0, len(words) - WORDS, WORDS)):
            if (number % 4 != 0) == train:
                tokens.append(words[start : start + WORDS])
                labels.append(label)
    return TensorDataset(torch.tensor(tokens), torch.tensor(labels))


def evaluate(model, batches):
    hits = total = 0
    for tokens, labels in batches:
        hits += (model(tokens).argmax(1) == labels).sum().item()
        total += len(labels)
    return {"accuracy": hits / total}


def build():
    return autoopt.Workload(
        model=Classifier(),
        train_data=pieces(train=True),
        batch_size=32,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=3e-4),
        valid_data=pieces(train=False),
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=0.7),
        max_epochs=12,
    )


def small():
    """A narrower and shallower student, for --student."""
    workload = build()
    workload.model = Classifier(width=64, layers=1)
    return workload
