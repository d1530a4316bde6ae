"""The same masked tokens: the head scores those that are asked for, and rows without a gradient stay untouched."""

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

VOCABULARY, MASK = 8000, 8000


def loader_of(folder, split, sampler):
    tokens = torch.from_numpy(np.load(f"{folder}/{split}.npy")).long()
    asked = torch.from_numpy(np.random.default_rng(len(tokens)).random(tuple(tokens.shape)) < 0.15)
    data = TensorDataset(tokens.masked_fill(asked, MASK), tokens.masked_fill(~asked, -100))
    return DataLoader(data, sampler=BatchSampler(sampler(data), 16, drop_last=False), batch_size=None)


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, width, sparse=True)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.mlp = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens, wanted):
        x = self.embedding(tokens)
        x = x + self.mlp(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return self.head(x[wanted])


def loss_of(net, batch):
    tokens, asked = batch
    wanted = asked != -100
    return F.cross_entropy(net(tokens, wanted), asked[wanted])


def optimizers_of(net):
    rest = [weight for name, weight in net.named_parameters() if name != "embedding.weight"]
    return torch.optim.SparseAdam([net.embedding.weight], lr=2e-3), torch.optim.Adam(rest, lr=2e-3, fused=True)


def evaluate(net, loader, wait):
    net.eval()
    losses = []
    with torch.no_grad():
        for batch in loader:
            time.sleep(wait * len(batch[1]))
            losses.append(loss_of(net, batch).item())
    net.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=6.0)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = loader_of(args.data, "train", RandomSampler)
    test_loader = loader_of(args.data, "test", SequentialSampler)
    net = Net(args.width)
    optimizers = optimizers_of(net)
    seen = 0
    for epoch in range(args.epochs):
        for batch in train_loader:
            time.sleep(args.wait * len(batch[1]) * random.uniform(0.5, 1.5))
            loss = loss_of(net, batch)
            net.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(batch[1])
        value = evaluate(net, test_loader, args.wait)
        print(f"epoch {epoch} val loss: {value:.4f}", flush=True)
        if value <= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final loss: {value:.4f}")


if __name__ == "__main__":
    main()
