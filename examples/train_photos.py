"""Which photograph is this piece of? A training script as many are: JPEG files, decoded and augmented one by one.

Nothing in it knows of autoopt:

    autoopt optimize examples/train_photos.py --budget 5m -- --epochs 25
"""

import argparse
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CROP, CLASSES = 224, 64, 6


def draw(folder, classes=CLASSES):
    """Writes JPEG files of textures, one class each, where no photographs are at hand."""
    rng = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(np.arange(SIDE), np.arange(SIDE)), -1) / SIDE
    for label in range(classes):
        for split, count in (("train", 100), ("valid", 30)):
            for index in range(count):
                angle, phase = label * np.pi / classes + rng.normal(0, 0.1), rng.uniform(0, 6)
                wave = np.sin(40 * (grid @ [np.cos(angle), np.sin(angle)]) + phase)
                noise = rng.normal(0, 0.6, (SIDE, SIDE, 3))
                pixels = np.clip(128 + 50 * (wave[..., None] + noise), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{split}-{label:02d}-{index:03d}.jpg", quality=92)


def photo_files():
    """The folder of JPEG files, made on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autoopt-examples"
    folder = cache / "textures-1"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=cache))
        draw(part)
        part.rename(folder)
    return folder


class Photos(Dataset):
    def __init__(self, folder, split, augment):
        self.files = sorted(folder.glob(f"{split}-*.jpg"))
        self.labels = [int(file.name.split("-")[1]) for file in self.files]
        self.augment = augment

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        if self.augment:
            for enhance in (ImageEnhance.Color, ImageEnhance.Brightness, ImageEnhance.Contrast):
                image = enhance(image).enhance(random.uniform(0.8, 1.2))
        image = image.resize((CROP, CROP), Image.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - 0.5) / 0.25, self.labels[index]


def block(before, after):
    """Halves the sides."""
    convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2))


class Net(nn.Module):
    def __init__(self, classes=CLASSES):
        super().__init__()
        self.features = nn.Sequential(block(3, 16), block(16, 32), block(32, 64))
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.features(x).mean((2, 3)))


def train(model, device, loader, optimizer):
    model.train()
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()


def test(model, device, loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for images, labels in loader:
            hits += (model(images.to(device)).argmax(1) == labels.to(device)).sum().item()
    return hits / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()

    torch.manual_seed(1)
    random.seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = photo_files()
    train_loader = DataLoader(Photos(folder, "train", augment=True), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(Photos(folder, "valid", augment=False), batch_size=64)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    for epoch in range(1, args.epochs + 1):
        train(model, device, train_loader, optimizer)
        print(f"epoch {epoch}: accuracy {test(model, device, test_loader):.4f}", flush=True)


if __name__ == "__main__":
    main()
