"""Weights are updated by the script's own lines; ``loads``: batches come from a loader."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(240, 8)
y = (x[:, 0] > 0).long()
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))
loader = DataLoader(TensorDataset(x, y), batch_size=12)


def batches():
    return loader if "loads" in sys.argv else zip(x.split(12), y.split(12), strict=True)


def update(rate):
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-rate)


for epoch in range(100000):
    model.train()
    for inputs, labels in batches():
        model.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        update(0.1)
    model.eval()
    with torch.no_grad():
        print("epoch", epoch, "accuracy", (model(x).argmax(1) == y).float().mean().item())
