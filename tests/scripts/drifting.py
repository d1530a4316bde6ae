"""A small training that keeps graphs, or sums a growing list in every step, or does neither: the second word says."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, KIND = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(3)
torch.set_num_threads(1)
inputs = torch.randn(256, 64)
loader = DataLoader(TensorDataset(inputs, (inputs.sum(1) > 0).long()), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
losses, history, mean, step = [], [], 0.0, 0
while step < STEPS:
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
        if KIND == "graphs":
            losses.append(loss)
            running = sum(losses) / len(losses)
        elif KIND == "list":
            history.extend([loss.item()] * 500)
            mean = sum(history) / len(history)
print(step, mean)
