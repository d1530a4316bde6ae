"""Compiles its model, by itself or in its place, and adds up the gradients of two batches."""

import sys

import torch
from torch import nn

RUNS = []


def counted(graph, _):
    def run(*args):
        RUNS.append(1)
        return graph(*args)

    return run


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, x):
        return self.layers(x)


net = Net()
if sys.argv[1:] == ["in_place"]:
    model = net
    net.compile(backend=counted)
else:
    model = torch.compile(net, backend=counted, mode=None, dynamic=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    for _ in range(2):
        inputs = torch.randn(8, 6)
        loss = nn.functional.cross_entropy(model(inputs), (inputs.sum(1) > 0).long()) / 2
        loss.backward()
    optimizer.step()
