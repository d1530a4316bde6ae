"""Molecules are turned into numbers by the script's own lines, which have no loader, again in every epoch."""

import random

import torch
from torch import nn

EPOCHS, LETTERS = 12, "CNOFSPcnos()=#123"


def features(formula):
    """How often each letter, and each two in a row, occur."""
    counts = [0.0] * (len(LETTERS) + len(LETTERS) ** 2)
    for place, letter in enumerate(formula):
        counts[LETTERS.index(letter)] += 1.0
        if place:
            counts[len(LETTERS) + LETTERS.index(formula[place - 1]) * len(LETTERS) + LETTERS.index(letter)] += 1.0
    return torch.tensor(counts)


def batch_of(molecules):
    inputs = torch.stack([features(formula) for formula, _ in molecules])
    return inputs, torch.tensor([value for _, value in molecules])


random.seed(0)
torch.manual_seed(0)
formulas = ["".join(random.choices(LETTERS, k=random.randint(40, 120))) for _ in range(6000)]
molecules = [(each, (each.count("N") - each.count("O") + each.count("C=")) / 5) for each in formulas]
train, valid = molecules[:5000], molecules[5000:]
model = nn.Sequential(nn.Linear(306, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    model.train()
    random.shuffle(train)
    for begin in range(0, len(train), 50):
        inputs, values = batch_of(train[begin : begin + 50])
        loss = nn.functional.mse_loss(model(inputs).squeeze(1), values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        inputs, values = batch_of(valid)
        print(f"epoch {epoch} valid mae {(model(inputs).squeeze(1) - values).abs().mean():.4f}")
