"""A student learns from a teacher, and a head on a frozen trunk; another frozen module is of no use twice."""

import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

WAY = sys.argv[2] if len(sys.argv) > 2 else "plain"


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Linear(16, 4)
        self.trunk.requires_grad_(False)

    def forward(self, x):
        return self.head(self.trunk(x))


class Asked(nn.Linear):
    """A layer that does not like to be asked too often."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        assert WAY != "counted" or self.calls < 100
        return super().forward(x)


torch.manual_seed(0)
rows = torch.randn(40, 8)
loader = DataLoader(TensorDataset(rows, rows.sum(1).gt(0).long()), batch_size=8, shuffle=True)
teacher = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.5 if WAY == "dropout" else 0.0), Asked(64, 4))
teacher.train(WAY in ("norm", "dropout"))
if WAY == "dropout":
    teacher[1].eval()
student = Student()
optimizer = torch.optim.SGD(student.head.parameters(), lr=0.1)
for epoch in range(int(sys.argv[1])):
    for x, y in loader:
        if WAY == "noise":
            seen = x + torch.randn_like(x)
        else:
            seen = x
        with torch.no_grad():
            answers = teacher(seen)
        loss = F.cross_entropy(student(x), y) + F.mse_loss(student(x), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if WAY == "average":
            with torch.no_grad():
                teacher[3].weight.data.mul_(0.9)
        print(f"loss {loss.item():.6f}")
