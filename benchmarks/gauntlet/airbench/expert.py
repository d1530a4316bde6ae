"""The same network after airbench's plain recipe: whitened first layer, Dirac weights, a triangle of learning rates."""

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Batches:
    """Batches of a split; pictures are flipped in every other epoch, and moved by up to two pixels."""

    def __init__(self, folder, split, size):
        file = np.load(f"{folder}/{split}.npz")
        images = (torch.from_numpy(file["images"]).permute(0, 3, 1, 2).float() - 128) / 64
        self.images = images.contiguous(memory_format=torch.channels_last)
        self.labels = torch.from_numpy(file["labels"])
        self.train, self.size, self.epoch = split == "train", size, 0
        self.flipped = torch.rand(len(images)) < 0.5

    def __len__(self):
        return -(-len(self.labels) // self.size)

    def __iter__(self):
        if not self.train:
            yield from zip(self.images.split(self.size), self.labels.split(self.size), strict=True)
            return
        flip = self.flipped ^ (self.epoch % 2 == 1)
        self.epoch += 1
        for indices in torch.randperm(len(self.labels)).split(self.size):
            images = self.images[indices]
            images = torch.where(flip[indices].view(-1, 1, 1, 1), images.flip(-1), images)
            images = F.pad(images, (2, 2, 2, 2), mode="reflect")
            top, left = torch.randint(0, 5, (2, len(images)))
            rows, columns = top[:, None] + torch.arange(32), left[:, None] + torch.arange(32)
            which = torch.arange(len(images))[:, None, None]
            images = images.permute(0, 2, 3, 1)[which, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
            yield images, self.labels[indices]


class Block(nn.Module):
    def __init__(self, channels, wider):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight[:channels])

    def forward(self, x):
        x = F.relu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.relu(x + self.norm2(self.conv2(x)))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(Block(width, 2 * width), Block(2 * width, 4 * width), Block(4 * width, 4 * width))
        self.head = nn.Linear(4 * width, 10)

    def whiten(self, images):
        """The first layer's weights are the main directions of the pictures' own pieces, at unit variance."""
        pieces = images.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 27)
        values, vectors = torch.linalg.eigh(pieces.T @ pieces / len(pieces))
        found = (vectors / (values + 1e-2).sqrt()).T.flip(0)[: self.first.out_channels // 2]
        both = torch.cat([found, -found]).view(-1, 3, 3, 3)
        self.first.weight.data[: len(both)] = both

    def forward(self, images):
        x = F.relu(self.norm(self.first(images)))
        return self.head(self.blocks(x).amax((2, 3)))


def evaluate(net, batches, wait):
    net.eval()
    right = count = 0
    with torch.no_grad():
        for images, labels in batches:
            time.sleep(wait * len(labels))
            scores = net(images) + net(images.flip(-1))  # both views of a picture vote
            right, count = right + (scores.argmax(1) == labels).sum().item(), count + len(labels)
    net.train()
    return right / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=0.93)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train, test = Batches(args.data, "train", 128), Batches(args.data, "test", 250)
    net = Net(args.width).to(memory_format=torch.channels_last)
    net.whiten(train.images[:500])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.15, momentum=0.85, nesterov=True, weight_decay=5e-4)
    rising, falling = len(train) // 2, 5 * len(train)
    triangle = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(0.2 + 0.8 * step / rising, max(0.05, 1 - (step - rising) / (falling - rising))),
    )
    seen = 0
    for epoch in range(args.epochs):
        for images, labels in train:
            time.sleep(args.wait * len(labels) * random.uniform(0.5, 1.5))
            loss = F.cross_entropy(net(images), labels, label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            triangle.step()
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
