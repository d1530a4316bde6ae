"""Compressed pictures are unpacked in every evaluation again, by a loader that each of them makes."""

import zlib

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS = 10


class Packed(Dataset):
    def __init__(self, count, seed, noise):
        draw = np.random.default_rng(seed)
        self.noise, self.packed, self.classes = noise, [], draw.integers(4, size=count)
        for each in self.classes:
            picture = draw.normal(size=(3, 32, 32)).astype("f4")
            picture[:, 8 * each : 8 * each + 8] += 0.3
            self.packed.append(zlib.compress(picture.tobytes()))

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, index):
        picture = np.frombuffer(zlib.decompress(self.packed[index]), "f4").reshape(3, 32, 32)
        picture = (picture - picture.mean()) / picture.std()
        if self.noise:
            picture = picture + self.noise * np.random.standard_normal(picture.shape).astype("f4")
        return torch.from_numpy(picture), int(self.classes[index])


def accuracy(model, data):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in DataLoader(data, batch_size=64))
    return right / len(data)


torch.manual_seed(0)
train, valid = Packed(2000, 0, noise=0.1), Packed(4000, 1, noise=0.0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(16 * 64, 4)
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(EPOCHS):
    model.train()
    for x, y in DataLoader(train, batch_size=32, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} valid accuracy {accuracy(model, valid):.4f}")
