"""A small network on a small batch: bound by launches and Python, with the device idle most of the time."""

import torch
from labelled import evaluate, loss
from torch import nn
from torch.utils.data import TensorDataset

import autoopt

FULL = {"samples": 16_384, "width": 128, "layers": 12, "batch": 64, "evaluate_every": 256}
TOY = {"samples": 128, "width": 16, "layers": 3, "batch": 16, "evaluate_every": 8}
METRIC = "accuracy"


def points(count, seed):
    """Points in 32 dimensions; the label is whether two of them have the same sign."""
    x = torch.randn(count, 32, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, 0] * x[:, 1] > 0).long())


def network(width, layers):
    parts = [nn.Linear(32, width), nn.ReLU()]
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.LayerNorm(width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, 2))


def optimizer(params, **options):
    return torch.optim.AdamW(params, lr=1e-3, **options)


def build(size=FULL):
    return autoopt.Workload(
        model=network(size["width"], size["layers"]),
        train_data=points(size["samples"], 1),
        batch_size=size["batch"],
        loss=loss,
        optimizer=optimizer,
        valid_data=points(max(size["samples"] // 8, 32), 2),
        evaluate=evaluate,
        target=autoopt.Target("accuracy"),
        max_epochs=50,
        evaluate_every=size["evaluate_every"],
    )


def build_toy():
    return build(TOY)
