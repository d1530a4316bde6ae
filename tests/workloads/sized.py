"""A small transformer whose ``build`` has sizes: some of its model alone, some of more than that.

Tokens are told apart by whether a run of them adds up to more than its middle, which a narrow model learns as well.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import autoopt

TOKENS, LENGTH = 24, 6


class Net(nn.Module):
    def __init__(self, width: int, depth: int, heads: int, tokens: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 2 * width, dropout=0.0, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def texts(samples: int, seed: int, classes: int) -> TensorDataset:
    tokens = torch.randint(TOKENS, (samples, LENGTH), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(tokens, (tokens.sum(1) * classes // (TOKENS * LENGTH)).clamp(max=classes - 1))


def accuracy(model: nn.Module, batches: object) -> dict[str, float]:
    right = [(model(x).argmax(1) == y).float() for x, y in batches]  # type: ignore[attr-defined]
    return {"accuracy": torch.cat(right).mean().item()}


def build(
    width: int = 32,
    *,
    depth: int = 2,
    heads: int = 4,
    tokens: int = TOKENS,
    classes: int = 2,
    samples: int = 1024,
    name: str = "net",
    bias: bool = True,
) -> autoopt.Workload:
    return autoopt.Workload(
        model=Net(width, depth, heads, tokens, classes),
        train_data=texts(samples, 1, classes),
        batch_size=32,
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        valid_data=texts(512, 2, classes),
        evaluate=accuracy,
        evaluate_every=20,
        target=autoopt.Target("accuracy", at_least=0.9),
        max_steps=400,
        name=name,
    )


def without_sizes() -> autoopt.Workload:
    return build()


def of_samples(samples: int = 1024) -> autoopt.Workload:
    return build(samples=samples)


def fixed(width: int = 32) -> autoopt.Workload:
    if width != 32:
        raise ValueError(f"no such width: {width}")
    return build(width)


def own_optimizer(width: int = 32) -> autoopt.Workload:
    """Its optimizer reaches for the model of the workload past the parameters that it is given."""
    workload, first = build(width), build().model
    workload.optimizer = lambda params: torch.optim.AdamW(first.parameters(), lr=1e-3)
    return workload


ready = build()
