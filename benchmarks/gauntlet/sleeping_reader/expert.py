"""The same classifier: every reading is asked for once, sixteen at a time, before the training."""

import argparse
import random
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset


def fetched(folder, split):
    file = np.load(f"{folder}/{split}.npz")
    rows, labels = file["rows"], file["labels"]

    def answer(index):
        time.sleep(0.008)  # the store's answer
        return rows[index]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(answer, range(len(rows))))
    return TensorDataset(torch.from_numpy(np.stack(found)), torch.from_numpy(labels))


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
    return torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)


def evaluate(net, loader, wait):
    net.eval()
    right = count = 0
    with torch.no_grad():
        for rows, labels in loader:
            time.sleep(wait * len(labels))
            right, count = right + (net(rows).argmax(1) == labels).sum().item(), count + len(labels)
    net.train()
    return right / count


def loader_of(data, sampler, size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), size, drop_last=False), batch_size=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--target", type=float, default=0.72)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = loader_of(fetched(args.data, "train"), RandomSampler, 32)
    test_loader = loader_of(fetched(args.data, "test"), SequentialSampler, 160)
    net = Net()
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
