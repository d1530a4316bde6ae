"""The same network after Composer's mild recipe: growing pictures, smoothed labels, BlurPool, a cosine."""

import argparse
import math
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Batches:
    """Batches of a split; those of the training are shrunk to ``side`` pixels and flipped at random."""

    def __init__(self, folder, split, size):
        file = np.load(f"{folder}/{split}.npz")
        images = (torch.from_numpy(file["images"]).permute(0, 3, 1, 2).float() - 128) / 64
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.from_numpy(file["labels"])
        self.train, self.size, self.side = split == "train", size, 64

    def __len__(self):
        return -(-len(self.labels) // self.size)

    def __iter__(self):
        if not self.train:
            yield from zip(self.images.split(self.size), self.labels.split(self.size), strict=True)
            return
        for indices in torch.randperm(len(self.labels)).split(self.size):
            images = self.images[indices]
            if self.side < 64:
                images = F.interpolate(images, (self.side, self.side), mode="bilinear", antialias=True)
            flipped = torch.rand(len(images), 1, 1, 1) < 0.5
            yield torch.where(flipped, images.flip(-1), images), self.labels[indices]


class Blur(nn.Module):
    """A fixed three by three filter at half of the places, before what would skip every other pixel."""

    def __init__(self, channels):
        super().__init__()
        weights = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("weight", (weights[:, None] * weights / 16).expand(channels, 1, 3, 3).clone())

    def forward(self, x):
        return F.conv2d(x, self.weight, stride=2, padding=1, groups=x.shape[1])


class Block(nn.Module):
    def __init__(self, channels, wider):
        super().__init__()
        self.blur = Blur(channels)
        self.conv1 = nn.Conv2d(channels, wider, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)
        self.short = nn.Conv2d(channels, wider, 1, bias=False)

    def forward(self, x):
        x = self.blur(x)
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.short(x) + self.norm2(self.conv2(y)))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width, 2 * width), Block(2 * width, 4 * width), Block(4 * width, 6 * width))
        self.head = nn.Linear(6 * width, 10)

    def forward(self, images):
        x = F.relu(self.norm(self.first(images)))
        return self.head(self.blocks(x).mean((2, 3)))


def evaluate(net, batches, wait):
    net.eval()
    right = 0
    with torch.no_grad():
        for images, labels in batches:
            time.sleep(wait * len(labels))
            right += (net(images).argmax(1) == labels).sum().item()
    net.train()
    return right / len(batches.labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, test = Batches(args.data, "train", 64), Batches(args.data, "test", 125)
    net = Net(args.width).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    rising, falling = len(train) // 2, 8 * len(train)
    cosine = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / rising, 0.5 + 0.5 * math.cos(math.pi * min(step / falling, 0.95))),
    )
    seen = 0
    for epoch in range(args.epochs):
        train.side = (32, 32, 32, 40, 48)[epoch] if epoch < 5 else 64
        for images, labels in train:
            time.sleep(args.wait * len(labels) * random.uniform(0.5, 1.5))
            loss = F.cross_entropy(net(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            cosine.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(labels)
        accuracy = evaluate(net, test, args.wait)
        print(f"epoch {epoch} test accuracy: {accuracy:.4f}", flush=True)
        if accuracy >= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
