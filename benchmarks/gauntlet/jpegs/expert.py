"""The same network and pictures: decoded once, in two threads, and kept at the size that the network reads."""

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler


class Data:
    def __init__(self, folder, split):
        files = sorted(Path(folder, split).glob("*.jpg"))
        with ThreadPoolExecutor(2) as pool:
            pixels = torch.from_numpy(np.stack(list(pool.map(self.decoded, files))))
        self.images = (pixels.permute(0, 3, 1, 2).float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        self.labels = torch.tensor([int(file.stem.split("_")[1]) for file in files])
        self.train = split == "train"

    @staticmethod
    def decoded(file):
        image = Image.open(file)
        image.draft("RGB", (192, 144))  # a quarter of each side, by the decoder itself
        return np.asarray(image.convert("RGB").resize((64, 64), Image.Resampling.BICUBIC))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, indices):
        images = self.images[indices]
        if self.train:
            flipped = torch.rand(len(images), 1, 1, 1) < 0.5
            images = torch.where(flipped, images.flip(-1), images)
        return images, self.labels[indices]


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
    return torch.optim.Adam(net.parameters(), lr=2e-3, fused=True)


def evaluate(net, loader, wait):
    net.eval()
    right = 0
    with torch.no_grad():
        for images, labels in loader:
            time.sleep(wait * len(labels))
            right += (net(images).argmax(1) == labels).sum().item()
    net.train()
    return right / len(loader.dataset)


def loader_of(data, sampler, size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), size, drop_last=False), batch_size=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--target", type=float, default=0.85)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = loader_of(Data(args.data, "train"), RandomSampler, 16)
    test_loader = loader_of(Data(args.data, "test"), SequentialSampler, 80)
    net = Net(args.width).to(memory_format=torch.channels_last)
    optimizer = optimizer_of(net)
    seen = 0
    for epoch in range(args.epochs):
        for batch in train_loader:
            time.sleep(args.wait * len(batch[1]) * random.uniform(0.5, 1.5))
            loss = loss_of(net, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if seen == 0:
                print(f"first step: loss {loss.item():.4f}", flush=True)
            seen += len(batch[1])
        accuracy = evaluate(net, test_loader, args.wait)
        print(f"epoch {epoch} test accuracy: {accuracy:.4f}", flush=True)
        if accuracy >= args.target:
            break
    print(f"samples seen: {seen}")
    print(f"final accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
