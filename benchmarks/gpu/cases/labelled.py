"""The common part of cases that tell classes apart: cross-entropy, and the share that is right."""

import torch.nn.functional as F


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def evaluate(model, batches):
    hits = total = 0
    for inputs, labels in batches:
        hits += (model(inputs).argmax(1) == labels).sum().item()
        total += len(labels)
    return {"accuracy": hits / total}
