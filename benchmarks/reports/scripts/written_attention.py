"""A small transformer whose attention is written out, on sequences of 512 tokens."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

STEPS, LENGTH, WIDTH, HEADS = 60, 512, 128, 4


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.qkv(x).split(c, 2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(torch.ones(t, t).tril() == 0, float("-inf"))
        y = torch.softmax(scores, -1) @ v
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(Attention() for _ in range(3))
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


torch.manual_seed(0)
tokens = torch.randint(0, 256, (4 * STEPS, LENGTH + 1))
loader = DataLoader(TensorDataset(tokens), batch_size=4)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for epoch in range(2):
    for (x,) in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
