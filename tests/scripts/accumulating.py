"""Adds up the gradients of four batches: loaders from a helper, a bar around them, a scaler and autocast of its own."""

import sys
from types import SimpleNamespace

import torch
from accumulating_data import make_loaders
from torch import nn

cfg = SimpleNamespace(epochs=100000, accumulate=4, amp=False, data=SimpleNamespace(batch=16, workers=0))
for word in sys.argv[1:]:
    setattr(cfg, word.split("=")[0], int(word.split("=")[1]))


class Bar:
    def __init__(self, iterable):
        self.iterable, self.done = iterable, 0

    def __len__(self):
        return len(self.iterable)

    def __iter__(self):
        for item in self.iterable:
            yield item
            self.done += 1


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = sum((model(x).argmax(1) == y).float().sum().item() for x, y in Bar(loader))
    model.train()
    return right / 160


def main():
    torch.manual_seed(1)
    loaders = make_loaders(cfg)
    bar = Bar(loaders["train"])
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    for epoch in range(cfg.epochs):
        for i, (x, y) in enumerate(bar):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cfg.amp):
                loss = nn.functional.cross_entropy(model(x), y) / cfg.accumulate
            scaler.scale(loss).backward()
            if (i + 1) % cfg.accumulate == 0 or i + 1 == len(bar):
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
        print(f"epoch {epoch} valid accuracy {evaluate(model, loaders['valid']):.3f}")


if __name__ == "__main__":
    main()
