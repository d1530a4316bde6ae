"""A decoder that does not fit as a first script trains it: about 7B parameters, fp32, AdamW, batch 4 of 2,048 tokens.

Weights, gradients and both moments take 16 bytes a parameter. On a device too small for those of 7B, the
largest decoder is taken for which they fill three quarters of the memory: what does not fit then are the
activations of attention written by hand, (batch, heads, 2,048, 2,048) several times in each layer.

autoopt finds a plan under which it fits, which is then its baseline.
"""

import torch
import torch.nn.functional as F
from gpt2 import evaluate, loss
from torch import nn
from torch.utils.data import Dataset

import autoopt

STATE_BYTES = 16
STATE_SHARE = 0.75
FULL = {"vocabulary": 32_000, "context": 2048, "width": 4096, "hidden": 11_008, "heads": 32, "layers": 32, "batch": 4,
        "samples": 512, "valid": 8, "evaluate_every": 50}  # fmt: skip
TOY = {"vocabulary": 64, "context": 64, "width": 32, "hidden": 64, "heads": 4, "layers": 4, "batch": 8,
       "samples": 64, "valid": 8, "evaluate_every": 5}  # fmt: skip
METRIC = "loss"
TOY_MEMORY_LIMIT = 5 << 20
"""Bytes that stand for a device's memory where the toy is fitted on the CPU: less than untouched training takes."""


def parameters(size, layers):
    block = 4 * size["width"] ** 2 + 3 * size["width"] * size["hidden"]
    return layers * block + 2 * size["vocabulary"] * size["width"]


def layers_for(size, memory_bytes):
    """As many layers as ``size`` says, or as many as leave a quarter of the memory to activations."""
    layers = size["layers"]
    while layers > 1 and parameters(size, layers) * STATE_BYTES > STATE_SHARE * memory_bytes:
        layers -= 1
    return layers


class Text(Dataset):
    """Sequences that count upward by a step of their own, so that there is something to learn."""

    def __init__(self, size, count, first):
        self.size, self.count, self.first = size, count, first

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        number = self.first + index
        tokens = (torch.arange(self.size["context"] + 1) * (1 + number % 13) + 17 * number) % self.size["vocabulary"]
        return tokens[:-1], tokens[1:]


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (layer(x).view(batch, length, self.heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        scores = torch.softmax(scores.masked_fill(~mask, float("-inf")), dim=-1)
        return self.out((scores @ v).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        width, hidden = size["width"], size["hidden"]
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.attention = Attention(width, size["heads"])
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, size, layers):
        super().__init__()
        self.tokens = nn.Embedding(size["vocabulary"], size["width"])
        self.blocks = nn.ModuleList(Block(size) for _ in range(layers))
        self.norm = Norm(size["width"])
        self.head = nn.Linear(size["width"], size["vocabulary"], bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def decoder(size, layers):
    """A decoder whose weights repeat a million random numbers: drawing billions takes a minute in each process."""
    with torch.device("meta"):
        model = Decoder(size, layers)
    model.to_empty(device="cpu")
    drawn = 0.02 * torch.randn(1_000_003)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            if parameter.dim() == 1:
                parameter.fill_(1.0)
                continue
            flat, tile = parameter.view(-1), drawn.roll(7919 * number)
            for start in range(0, flat.numel(), tile.numel()):
                piece = flat[start : start + tile.numel()]
                piece.copy_(tile[: piece.numel()])
    return model


def optimizer(params, **options):
    return torch.optim.AdamW(params, lr=1e-4, **options)


def workload(size, layers):
    return autoopt.Workload(
        model=decoder(size, layers),
        train_data=Text(size, size["samples"], 0),
        batch_size=size["batch"],
        loss=loss,
        optimizer=optimizer,
        valid_data=Text(size, size["valid"], size["samples"]),
        evaluate=evaluate,
        target=autoopt.Target("loss", mode="min"),
        max_steps=2_000,
        evaluate_every=size["evaluate_every"],
    )


def build():
    memory = torch.cuda.get_device_properties(0).total_memory if torch.cuda.is_available() else 16 << 30
    return workload(FULL, layers_for(FULL, memory))


def build_toy():
    return workload(TOY, TOY["layers"])
