"""Two optimizers that take turns, in a function, everything under ``if __name__``."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def weights_init(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, 0.0, 0.02)


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, x):
        return self.main(x).squeeze(1)


def train(opt):
    loader = DataLoader(TensorDataset(torch.randn(128, 8)), batch_size=opt.batch, shuffle=True)
    netG = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    netD = Critic()
    netG.apply(weights_init), netD.apply(weights_init)
    bce = nn.BCELoss()
    optD = torch.optim.Adam(netD.parameters(), lr=2e-4)
    optG = torch.optim.Adam(netG.parameters(), lr=2e-4)
    for epoch in range(opt.epochs):
        for i, (real,) in enumerate(loader, 0):
            netD.zero_grad()
            ones, zeros = torch.ones(len(real)), torch.zeros(len(real))
            errD = bce(netD(real), ones)
            errD.backward()
            fake = netG(torch.randn(len(real), 4))
            bce(netD(fake.detach()), zeros).backward()
            optD.step()
            netG.zero_grad()
            errG = bce(netD(fake), ones)
            errG.backward()
            optG.step()
            if i % 50 == 0:
                print(f"[{epoch}] D {errD.item():.3f} G {errG.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    train(parser.parse_args())
