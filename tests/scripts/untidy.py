"""Configured by a decorator, a class with everything in it, two loaders and two models, and files left everywhere."""

import functools
import os
import shutil
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Config(dict):
    __getattr__ = dict.__getitem__


def configured(**defaults):
    def decorate(run):
        @functools.wraps(run)
        def main():
            given = dict(word.split("=", 1) for word in sys.argv[1:])
            run(Config({key: type(value)(given.get(key, value)) for key, value in defaults.items()}))

        return main

    return decorate


class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        make = lambda n: TensorDataset(torch.randn(n, 6), torch.randint(3, (n,)))  # noqa: E731
        self.labelled = DataLoader(make(96), cfg.batch, True)
        self.other = DataLoader(make(192), 2 * cfg.batch, True)
        self.encoder, self.head = nn.Sequential(nn.Linear(6, 16), nn.ReLU()), nn.Linear(16, 3)
        self.opt = torch.optim.Adam([*self.encoder.parameters(), *self.head.parameters()], lr=cfg.lr)

    def fit(self):
        step = 0
        while True:
            for (x, y), (u, _) in zip(self.labelled, self.other):
                loss = nn.functional.cross_entropy(self.head(self.encoder(x)), y)
                loss = loss + 0.01 * self.encoder(u).pow(2).mean()
                self.opt.zero_grad(), loss.backward(), self.opt.step()
                step += 1
                if step >= self.cfg.steps:
                    sys.exit(0)
            self.leave_files(step)

    def leave_files(self, step):
        os.makedirs("out/deep", exist_ok=True)
        with open("log.txt", "a") as log:
            log.write(f"{step}\n")
        torch.save(self.head.state_dict(), "out/deep/new.pt")
        os.replace("out/deep/new.pt", "out/last.pt")
        if os.path.exists("keep/renamed.txt"):
            os.rename("keep/renamed.txt", "keep/elsewhere.txt")
            os.remove("keep/deleted.txt")
            shutil.rmtree("keep/folder")
            os.chmod("keep/elsewhere.txt", 0o600)


@configured(batch=8, lr=1e-3, steps=100000)
def main(cfg):
    Trainer(cfg).fit()


if __name__ == "__main__":
    main()
