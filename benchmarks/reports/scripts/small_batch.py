"""Batches of four samples, whose steps are Python and launches more than arithmetic."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 8

x = torch.randn(4096, 64)
y = (x[:, :8].sum(1) > 0).long()
train = DataLoader(TensorDataset(x[:3072], y[:3072]), batch_size=4, shuffle=True)
valid = DataLoader(TensorDataset(x[3072:], y[3072:]), batch_size=256)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
for epoch in range(EPOCHS):
    model.train()
    for inputs, labels in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = sum((model(inputs).argmax(1) == labels).sum().item() for inputs, labels in valid)
    print(f"epoch {epoch} valid accuracy {right / 1024:.4f}")
