"""Evaluates every fifty steps, one sample at a time."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
tokens = torch.randint(500, (2400, 24))
labels = (tokens < 240).float().mean(1).gt(0.48).long()
train = DataLoader(TensorDataset(tokens, labels), batch_size=32, shuffle=True)
valid = DataLoader(TensorDataset(tokens[:300], labels[:300]), batch_size=1)
model = nn.Sequential(nn.Embedding(500, 32), nn.Flatten(), nn.Linear(24 * 32, 128), nn.ReLU(), nn.Linear(128, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = 0
for _ in range(40):
    for x, y in train:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                hits = sum((model(x).argmax(1) == y).sum().item() for x, y in valid)
            model.train()
            print(f"step {step} val acc {hits / 300:.4f}")
