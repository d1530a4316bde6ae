"""Trains a net on made-up points, and collects garbage in every step, as somebody once thought it should."""

import argparse
import gc

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def accuracy(model, loader):
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in loader)
    model.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    torch.manual_seed(0)
    x = torch.randn(1280, 256)
    y = (x[:, :4].sum(1) > 0).long()
    train = DataLoader(TensorDataset(x[:1024], y[:1024]), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(x[1024:], y[1024:]), batch_size=256)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        for inputs, labels in train:  # one step
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            gc.collect()
        print(f"epoch {epoch}: valid accuracy {accuracy(model, valid):.4f}")
        torch.save(model.state_dict(), "last.pt")


if __name__ == "__main__":
    main()
