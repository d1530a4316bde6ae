"""GPT-2 with 124M parameters as in a first script: attention written by hand, context 1024, fp32, batch 8.

The text is generated: a random walk over the vocabulary in which each token has a few likely successors,
so that the loss falls from that of a guess toward the walk's own entropy.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import autoopt

FULL = {"vocabulary": 50257, "context": 1024, "width": 768, "heads": 12, "layers": 12, "batch": 8,
        "train": 4000, "valid": 64, "evaluate_every": 100}  # fmt: skip
TOY = {"vocabulary": 97, "context": 32, "width": 32, "heads": 2, "layers": 2, "batch": 4,
       "train": 64, "valid": 8, "evaluate_every": 5}  # fmt: skip
METRIC = "loss"
SUCCESSORS = 4


def walks(count, size, seed):
    """Token sequences of ``context + 1``; all share the successors, which ``seed`` does not change."""
    table = torch.randint(
        size["vocabulary"], (size["vocabulary"], SUCCESSORS), generator=torch.Generator().manual_seed(7)
    )
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.empty(count, size["context"] + 1, dtype=torch.long)
    tokens[:, 0] = torch.randint(size["vocabulary"], (count,), generator=generator)
    for place in range(size["context"]):
        choice = torch.randint(SUCCESSORS, (count,), generator=generator)
        tokens[:, place + 1] = table[tokens[:, place], choice]
    return tokens


class Text(Dataset):
    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return self.tokens[index, :-1], self.tokens[index, 1:]


class Attention(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, dim=2)
        q = q.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        k = k.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.mask[:, :, :length, :length] == 0, float("-inf"))
        scores = F.softmax(scores, dim=-1)
        out = scores @ v
        return self.out(out.transpose(1, 2).contiguous().view(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads, context):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, context)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A decoder; the head shares its weights with the embedding."""

    def __init__(self, size):
        super().__init__()
        width = size["width"]
        self.tokens = nn.Embedding(size["vocabulary"], width)
        self.places = nn.Embedding(size["context"], width)
        self.blocks = nn.ModuleList(Block(width, size["heads"], size["context"]) for _ in range(size["layers"]))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, size["vocabulary"], bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(model, batch):
    tokens, following = batch
    logits = model(tokens)
    return F.cross_entropy(logits.view(-1, logits.size(-1)), following.reshape(-1))


def evaluate(model, batches):
    total = count = 0
    for batch in batches:
        total += loss(model, batch).item()
        count += 1
    return {"loss": total / count}


def optimizer(params, **options):
    return torch.optim.AdamW(params, lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, **options)


def build(size=FULL):
    return autoopt.Workload(
        model=GPT(size),
        train_data=Text(walks(size["train"], size, seed=1)),
        batch_size=size["batch"],
        loss=loss,
        optimizer=optimizer,
        valid_data=Text(walks(size["valid"], size, seed=2)),
        evaluate=evaluate,
        target=autoopt.Target("loss", mode="min"),
        max_steps=20_000,
        evaluate_every=size["evaluate_every"],
        clip_grad_norm=1.0,
    )


def build_toy():
    return build(TOY)
