"""Everything in classes of its own: the loader, the optimizer, the model with its loss, and the trainer."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Bits(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, i):
        return torch.tensor([(i >> k) & 1 for k in range(8)], dtype=torch.float32), float(i % 2)


class MovedLoader(DataLoader):
    def __init__(self, dataset, device="cpu", **options):
        super().__init__(dataset, **options)
        self.device = device

    def __iter__(self):
        for x, y in super().__iter__():
            yield x.to(self.device), y.to(self.device).float()


class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, momentum=0.9):
        super().__init__(params, dict(lr=lr, momentum=momentum))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state[p].setdefault("kept", torch.zeros_like(p))
                kept.mul_(group["momentum"]).add_(p.grad)
                p.add_(kept, alpha=-group["lr"])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.body(x).squeeze(1)

    def training_step(self, x, y):
        return nn.functional.binary_cross_entropy_with_logits(self(x), y)


class Trainer:
    def __init__(self, steps):
        self.steps = steps
        self.unread, self.loader = MovedLoader(Bits()), MovedLoader(Bits(), batch_size=16, shuffle=True)
        self.model, self.teacher = Net(), None
        self.model.eval()(torch.zeros(1, 8))
        self.optimizer = Momentum(self.model.train().parameters(), lr=0.05)

    def fit(self):
        done = 0
        while done < self.steps:
            for x, y in self.loader:
                loss = self.model.training_step(x, y)
                self.model.zero_grad(); loss.backward(); self.optimizer.step()
                done += 1
                if done >= self.steps:
                    break


Trainer(int(sys.argv[1]) if len(sys.argv) > 1 else 64).fit()
