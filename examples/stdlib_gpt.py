"""A small GPT over the source of Python's standard library, attention written by hand: compute bound."""

import math
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import autoopt

CONTEXT, WIDTH, HEADS, LAYERS = 128, 128, 4, 4
MODULES = ["argparse", "ast", "asyncio/base_events", "collections/__init__", "dataclasses", "datetime", "decimal",
           "difflib", "doctest", "enum", "inspect", "logging/__init__", "os", "pickle", "subprocess", "tarfile",
           "threading", "typing", "zipfile"]  # fmt: skip


def source_bytes():
    """The modules one after the other, as a tensor of byte values below 128."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_bytes() for name in MODULES if (path := library / f"{name}.py").exists()]
    return torch.tensor([min(byte, 127) for byte in b"\n".join(texts)])


class Windows(Dataset):
    """Pieces of ``CONTEXT + 1`` characters that do not overlap."""

    def __init__(self, characters):
        self.characters = characters

    def __len__(self):
        return (len(self.characters) - 1) // CONTEXT

    def __getitem__(self, index):
        return self.characters[index * CONTEXT : (index + 1) * CONTEXT + 1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("causal", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // HEADS)
        scores = scores.masked_fill(~self.causal[:length, :length], float("-inf"))
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(128, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 128)

    def forward(self, tokens):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(model, batch):
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def evaluate(model, batches):
    total = count = 0
    for batch in batches:
        total += loss(model, batch).item() * len(batch)
        count += len(batch)
    return {"loss": total / count}


def build():
    characters = source_bytes()
    cut = int(len(characters) * 0.97)
    return autoopt.Workload(
        model=GPT(),
        train_data=Windows(characters[:cut]),
        batch_size=32,
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        valid_data=Windows(characters[cut:]),
        evaluate=evaluate,
        target=autoopt.Target("loss", at_most=2.3),
        max_epochs=10,
        evaluate_every=25,
    )
