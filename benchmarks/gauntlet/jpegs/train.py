"""A small convolutional network on large JPEG photographs in folders; each epoch decodes them anew."""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, folder, split):
        self.files = sorted(Path(folder, split).glob("*.jpg"))
        self.train = split == "train"

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB").resize((64, 64), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 127.5 - 1
        if self.train and torch.rand(1).item() < 0.5:
            pixels = pixels.flip(-1)
        return pixels, int(self.files[index].stem.split("_")[1])


class Net(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        layers, channels = [], 3
        for wider in (width, 2 * width, 3 * width, 4 * width):
            layers += [nn.Conv2d(channels, wider, 3, padding=1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
            layers += [nn.MaxPool2d(2)]
            channels = wider
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(channels, 4)

    def forward(self, images):
        return self.head(self.features(images).amax((2, 3)))


def loss_of(net, batch):
    images, labels = batch
    return F.cross_entropy(net(images), labels)


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=2e-3)


def evaluate(net, loader):
    net.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            right += (net(images).argmax(1) == labels).sum().item()
    net.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--target", type=float, default=0.85)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=16, shuffle=True)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=16)
    net = Net()
    optimizer = optimizer_of(net)
    seen = 0
    for epoch in range(args.epochs):
        for batch in train_loader:
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(batch[1])
        accuracy = evaluate(net, test_loader)
        print(f"epoch {epoch} test accuracy: {accuracy:.4f}", flush=True)
        if accuracy >= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
