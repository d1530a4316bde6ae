"""Draws all over: a dataset that draws and does not use it, dropout, and a validation loader read in between."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Drawing(Dataset):
    def __init__(self):
        self.inputs = torch.randn(96, 12)

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        torch.rand(3), random.random()
        return self.inputs[index], int(self.inputs[index].sum() > 0)


loader = DataLoader(Drawing(), batch_size=16, shuffle=True)
valid = DataLoader(Drawing(), batch_size=32)
model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100000):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
    print(f"val acc {correct / 96:.4f}")
