"""Handwritten digits with a small network and a small batch: overhead bound, launches and Python, not arithmetic."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset, random_split

import autoopt


def evaluate(model, batches):
    hits = total = 0
    for images, labels in batches:
        hits += (model(images).argmax(1) == labels).sum().item()
        total += len(labels)
    return {"accuracy": hits / total}


def build():
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    everything = TensorDataset(images, torch.tensor(digits.target))
    train, valid = random_split(everything, [1437, 360], generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(
        nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    return autoopt.Workload(
        model=model,
        train_data=train,
        batch_size=16,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.005),
        valid_data=valid,
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=0.94),
        max_epochs=200,
    )
