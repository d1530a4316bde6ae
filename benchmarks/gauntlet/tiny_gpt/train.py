"""A tiny GPT on characters, as the short tutorials write it."""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

BLOCK = 96


class Data(Dataset):
    def __init__(self, folder, split):
        with open(f"{folder}/input.txt", encoding="utf-8") as file:
            text = file.read()
        letters = sorted(set(text))
        self.number = {letter: place for place, letter in enumerate(letters)}
        cut = int(0.9 * len(text))
        self.text = text[:cut] if split == "train" else text[cut:]
        self.step = 1 if split == "train" else 64 * BLOCK // 16

    def __len__(self):
        return (len(self.text) - BLOCK - 1) // self.step

    def __getitem__(self, index):
        piece = self.text[index * self.step : index * self.step + BLOCK + 1]
        ids = torch.tensor([self.number[letter] for letter in piece])
        return ids[:-1], ids[1:]


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        return self.out((F.softmax(scores, dim=-1) @ v).transpose(1, 2).contiguous().view(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self, vocabulary=64, width=128, heads=4, layers=3):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def loss_of(net, batch):
    ids, following = batch
    return F.cross_entropy(net(ids).flatten(0, 1), following.flatten())


def optimizer_of(net):
    return torch.optim.AdamW(net.parameters(), lr=5e-4)


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
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--every", type=int, default=50, help="steps between two evaluations")
    parser.add_argument("--target", type=float, default=1.6)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=16, shuffle=True, drop_last=True)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=16, drop_last=True)
    net = Net()
    optimizer = optimizer_of(net)
    step = 0
    while step < args.steps:
        for batch in train_loader:
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == 1:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            if step % args.every == 0:
                value = evaluate(net, test_loader)
                print(f"step {step} val loss: {value:.4f}", flush=True)
                if value <= args.target or step >= args.steps:
                    break
        if value <= args.target:
            break
    print(f"samples seen: {16 * step}")
    print(f"final loss: {value:.4f}")


if __name__ == "__main__":
    main()
