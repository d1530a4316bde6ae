"""Masked tokens of a large vocabulary: the head scores every token, though one in seven is asked for."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

VOCABULARY, MASK = 8000, 8000


class Data(Dataset):
    def __init__(self, folder, split):
        self.tokens = np.load(f"{folder}/{split}.npy")
        draw = np.random.default_rng(len(self.tokens))
        self.asked = draw.random(self.tokens.shape) < 0.15

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        tokens = torch.from_numpy(self.tokens[index]).long()
        asked = torch.from_numpy(self.asked[index])
        return tokens.masked_fill(asked, MASK), tokens.masked_fill(~asked, -100)


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY + 1, width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.mlp = nn.Sequential(nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.mlp(self.conv(x.transpose(1, 2)).transpose(1, 2))
        return self.head(x)


def loss_of(net, batch):
    tokens, asked = batch
    return F.cross_entropy(net(tokens).view(-1, VOCABULARY), asked.view(-1), ignore_index=-100)


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=2e-3)


def evaluate(net, loader):
    net.eval()
    with torch.no_grad():
        losses = [loss_of(net, batch).item() for batch in loader]
    net.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=6.0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=16, shuffle=True)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=16)
    net = Net()
    optimizer = optimizer_of(net)
    seen = 0
    for epoch in range(args.epochs):
        for batch in train_loader:
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(batch[1])
        value = evaluate(net, test_loader)
        print(f"epoch {epoch} val loss: {value:.4f}", flush=True)
        if value <= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final loss: {value:.4f}")


if __name__ == "__main__":
    main()
