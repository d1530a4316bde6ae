"""A deep model of equal blocks: what its backward pass needs is most of its memory."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 100000
BATCH = int(sys.argv[2]) if len(sys.argv) > 2 else 512
torch.manual_seed(0)
inputs = torch.randn(4096, 32)
data = TensorDataset(inputs, (inputs[:, :16].sum(1) > 0).long())
loader = DataLoader(data, batch_size=BATCH, shuffle=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(8)])
        self.head = nn.Linear(32, 2)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step, total = 0, 0.0
while step < STEPS:
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)
        step += 1
    model.eval()
    with torch.no_grad():
        right = (model(inputs[:512]).argmax(1) == data.tensors[1][:512]).float().mean().item()
    print(f"step {step} loss {total / step:.4f} accuracy {right:.4f}", flush=True)
