"""LBFGS: each step calls a closure several times; the loop is a class's method."""

import torch
from torch import nn

torch.manual_seed(0)


class Fit:
    def __init__(self, count):
        self.count = count
        self.seq = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 1)).double()
        self.criterion = nn.MSELoss()
        self.optimizer = torch.optim.LBFGS(self.seq.parameters(), lr=0.5, max_iter=5)
        self.x = torch.randn(64, 6, dtype=torch.double)
        self.y = self.x.sum(1, keepdim=True)

    def run(self):
        for _ in range(self.count):

            def closure():
                self.optimizer.zero_grad()
                loss = self.criterion(self.seq(self.x), self.y)
                loss.backward()
                return loss

            self.optimizer.step(closure)


Fit(400).run()
