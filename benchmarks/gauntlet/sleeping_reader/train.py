"""A classifier of readings that a remote store sends one by one; each answer takes eight milliseconds."""

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, folder, split):
        file = np.load(f"{folder}/{split}.npz")
        self.rows, self.labels = file["rows"], file["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        time.sleep(0.008)  # the store's answer
        return torch.from_numpy(self.rows[index]), int(self.labels[index])


class Net(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
        )

    def forward(self, rows):
        return self.layers(rows)


def loss_of(net, batch):
    rows, labels = batch
    return F.cross_entropy(net(rows), labels)


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=1e-3)


def evaluate(net, loader):
    net.eval()
    right = 0
    with torch.no_grad():
        for rows, labels in loader:
            right += (net(rows).argmax(1) == labels).sum().item()
    net.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--target", type=float, default=0.72)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=32, shuffle=True)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=32)
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
