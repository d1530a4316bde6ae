"""A small training with dropout, a schedule and random augmentation, for kills and resumes."""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.utils.data import TensorDataset

import autoopt


def evaluate(model, batches):
    hits = total = 0
    for x, y in batches:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return {"accuracy": hits / total}


def build():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(90, 6, generator=generator)
    y = x[:, :3].argmax(1)
    return autoopt.Workload(
        model=nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3)),
        train_data=TensorDataset(x[:70], y[:70]),
        batch_size=8,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.02),
        scheduler=lambda o, n: torch.optim.lr_scheduler.OneCycleLR(o, 0.03, total_steps=n),
        valid_data=TensorDataset(x[70:], y[70:]),
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=float(os.environ.get("TRAIN_TARGET", "2"))),
        max_epochs=4,
    )
