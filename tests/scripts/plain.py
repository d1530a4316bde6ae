"""A small training, all at module level."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 200
inputs = torch.randn(256, 12)
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
loader = DataLoader(
    data,
    batch_size=16,
    shuffle=True,
)
valid = DataLoader(data, batch_size=64)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
while step < STEPS:
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        step += 1
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in valid:
            correct += (model(x).argmax(1) == y).sum().item()
    print(f"step {step} val acc {correct / len(data):.4f}")
    torch.save(model.state_dict(), "model.pt")
