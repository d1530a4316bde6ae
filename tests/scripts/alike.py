"""Trains and evaluates on datasets of one class, whose batches the evaluation may make itself (``own``); prints how
many samples it has read."""

import sys

import torch
from torch.utils.data import DataLoader, Dataset, default_collate


class Rows(Dataset):
    read = 0

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        Rows.read += 1
        return torch.full((4,), float(index)), index % 2


loader = DataLoader(Rows(32), batch_size=8, shuffle=True)
own = {"collate_fn": lambda batch: default_collate(batch)} if "own" in sys.argv else {}
test_loader = DataLoader(Rows(16), batch_size=8, **own)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(200):
    model.train()
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)
    print(f"epoch {epoch} accuracy: {right / 16:.4f} read {Rows.read}", flush=True)
