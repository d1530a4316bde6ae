"""A residual network on larger pictures, at full size and a constant learning rate."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, folder, split):
        file = np.load(f"{folder}/{split}.npz")
        self.images, self.labels = file["images"], file["labels"]
        self.train = split == "train"

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train and torch.rand(1).item() < 0.5:
            image = image[:, ::-1]
        pixels = torch.from_numpy(image.transpose(2, 0, 1).copy()).float()
        return (pixels - 128) / 64, int(self.labels[index])


class Block(nn.Module):
    def __init__(self, channels, wider):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)
        self.short = nn.Conv2d(channels, wider, 1, stride=2, bias=False)

    def forward(self, x):
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


def loss_of(net, batch):
    images, labels = batch
    return F.cross_entropy(net(images), labels)


def optimizer_of(net):
    return torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


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
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--target", type=float, default=0.9)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=64, shuffle=True, num_workers=2)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=64, num_workers=2)
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
