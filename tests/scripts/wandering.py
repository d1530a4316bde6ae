"""Leaves its folder, looks at the validation before it trains, and trains a model that stays in evaluation mode."""

import os

import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset
from tqdm import tqdm

EPOCHS = 500


class Rows(Sampler):
    """Batches of its own, of a size that it does not tell."""

    def __iter__(self):
        yield from torch.randperm(256).split(16)

    def __len__(self):
        return 16


def put_together(rows):
    x, y = zip(*rows)
    return torch.stack(x), torch.stack(y)


def right(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum().item() for x, y in loader)


os.makedirs("out", exist_ok=True)
os.chdir("out")
inputs = torch.linspace(-1, 1, 256 * 4).reshape(256, 4).sin()
data = TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters())
train, valid = DataLoader(data, batch_sampler=Rows(), collate_fn=put_together), DataLoader(data, batch_size=64)
print("before", right(model, valid))
for epoch in range(EPOCHS):
    bar = tqdm(train, disable=True)
    for step, (x, y) in enumerate(bar):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 8 == 7:
            print("after", right(model, valid))
