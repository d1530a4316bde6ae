"""The common part of cases that tell classes apart: cross-entropy, the share that is right, and residual stages."""

import torch.nn.functional as F
from torch import nn


def loss(model, batch):
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def evaluate(model, batches):
    hits = total = 0
    for inputs, labels in batches:
        hits += (model(inputs).argmax(1) == labels).sum().item()
        total += len(labels)
    return {"accuracy": hits / total}


def shortcut(inputs, outputs, stride):
    """Around a block: as it is, or a 1x1 convolution where the block changes the shape."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def stages(block, channels, depth, widening=1):
    """``block(inputs, channels, stride)`` in stages, each twice as wide on half the side; the last width too."""
    layers, inputs = [], channels
    for stage, count in enumerate(depth):
        for number in range(count):
            layers.append(block(inputs, channels * 2**stage, 2 if stage and number == 0 else 1))
            inputs = widening * channels * 2**stage
    return layers, inputs
