"""Sixteen micro-batches of two samples for each step of the optimizer, though all of them would fit."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ACCUMULATION = 20, 16

torch.manual_seed(0)
x = torch.randn(2048, 64)
loader = DataLoader(TensorDataset(x, (x[:, :4].sum(1) > 0).long()), batch_size=2, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    for i, (inputs, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs), labels) / ACCUMULATION
        loss.backward()
        if (i + 1) % ACCUMULATION == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"epoch {epoch} loss {loss.item():.4f}")
