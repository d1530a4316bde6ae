"""The same GPT after the first records of modded-nanogpt: rotary positions, normed queries, squared ReLU, Muon."""

import argparse
import random
import time

import torch
from torch import nn
from torch.nn import functional as F

BLOCK = 96


def read(folder):
    """Characters as numbers: the training part, and the pieces of the evaluation."""
    with open(f"{folder}/input.txt", encoding="utf-8") as file:
        text = file.read()
    number = {letter: place for place, letter in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[letter] for letter in text])
    cut = int(0.9 * len(text))
    pieces = ids[cut:].unfold(0, BLOCK + 1, 64 * BLOCK // 16)
    return ids[:cut].unfold(0, BLOCK + 1, 1), pieces[: len(pieces) // 16 * 16]


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.out.weight.data.zero_()
        frequencies = (1 / 100) ** torch.linspace(0, 1, width // heads // 2)
        angles = torch.arange(BLOCK)[:, None] * frequencies
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * self.cos + second * self.sin, second * self.cos - first * self.sin], dim=-1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        mixed = F.scaled_dot_product_attention(self.turned(norm(q)), self.turned(norm(k)), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)
        self.down.weight.data.zero_()

    def forward(self, x):
        x = x + self.attention(norm(x))
        return x + self.down(F.relu(self.up(norm(x))).square())


class Net(nn.Module):
    def __init__(self, vocabulary=64, width=128, heads=4, layers=3):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight.data.zero_()

    def forward(self, ids):
        return self.head(norm(self.blocks(norm(self.tokens(ids)))))


def loss_of(net, pieces):
    return F.cross_entropy(net(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


class Muon(torch.optim.Optimizer):
    """Momentum, made orthogonal by five Newton-Schulz steps."""

    def __init__(self, params, lr, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                buffer = self.state[weight].setdefault("buffer", torch.zeros_like(weight))
                buffer.lerp_(weight.grad, 1 - group["momentum"])
                x = weight.grad.lerp(buffer, group["momentum"])
                x = x.T if x.size(0) > x.size(1) else x
                x = x / (x.norm() + 1e-7)
                for _ in range(5):
                    square = x @ x.T
                    x = 3.4445 * x + (-4.775 * square + 2.0315 * square @ square) @ x
                x = x.T if weight.size(0) > weight.size(1) else x
                weight.add_(x, alpha=-group["lr"] * max(1, weight.size(0) / weight.size(1)) ** 0.5)


def evaluate(net, pieces, wait):
    net.eval()
    time.sleep(wait * len(pieces))
    with torch.no_grad():
        losses = [loss_of(net, part).item() for part in pieces.split(16)]
    net.train()
    return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--every", type=int, default=50, help="steps between two evaluations")
    parser.add_argument("--target", type=float, default=1.6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, test = read(args.data)
    net = Net(width=args.width)
    muon = Muon(net.blocks.parameters(), lr=0.02)
    adam = torch.optim.Adam([*net.tokens.parameters(), *net.head.parameters()], lr=5e-3, betas=(0.8, 0.95), fused=True)
    step = 0
    while step < args.steps:
        time.sleep(args.wait * 16 * random.uniform(0.5, 1.5))
        loss = loss_of(net, train[torch.randint(0, len(train), (16,))])
        net.zero_grad()
        loss.backward()
        muon.step()
        adam.step()
        step += 1
        if step == 1:
            print(f"first step: loss {loss.item():.4f}", flush=True)
        if step % args.every == 0:
            value = evaluate(net, test, args.wait)
            print(f"step {step} val loss: {value:.4f}", flush=True)
            if value <= args.target:
                break
    print(f"samples seen: {16 * step}")
    print(f"final loss: {value:.4f}")


if __name__ == "__main__":
    main()
