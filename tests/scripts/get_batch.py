"""No DataLoader, accumulation, options that ``exec`` sets, as small GPT trainings do it."""

import sys

import torch
import torch.nn.functional as F
from torch import nn

max_iters = 500
accumulation = 4
batch_size, block_size, vocabulary = 8, 16, 50
for word in sys.argv[1:]:
    exec(word.removeprefix("--"))

data = torch.randint(vocabulary, (5000,))


def get_batch():
    ix = torch.randint(len(data) - block_size - 1, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])
    return x, y


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 32)
        self.head = nn.Linear(32, vocabulary)

    def forward(self, x, y=None):
        logits = self.head(self.embedding(x))
        return logits, None if y is None else F.cross_entropy(logits.view(-1, vocabulary), y.view(-1))


model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
X, Y = get_batch()
for it in range(max_iters):
    for micro_step in range(accumulation):
        logits, loss = model(X, Y)
        loss = loss / accumulation
        X, Y = get_batch()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if it % 100 == 0:
        print(f"iter {it}: loss {loss.item() * accumulation:.4f}")
