"""Spectrograms of recordings: eight workers that start anew for every pass, and an evaluation one by one."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, folder, split):
        file = np.load(f"{folder}/{split}.npz")
        self.waves, self.labels = file["waves"], file["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        wave = self.waves[index].astype(np.float64) / 32768
        window = np.hanning(256)
        frames = np.stack([wave[start : start + 256] * window for start in range(0, len(wave) - 255, 128)])
        power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
        return torch.tensor(np.log(power + 1e-6).T, dtype=torch.float32), int(self.labels[index])


class Net(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        layers, channels = [nn.BatchNorm1d(129)], 129
        for _ in range(3):
            layers += [nn.Conv1d(channels, width, 5, padding=2, bias=False), nn.BatchNorm1d(width), nn.ReLU()]
            layers += [nn.MaxPool1d(2)]
            channels = width
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(width * 7, 9)

    def forward(self, spectra):
        return self.head(self.features(spectra).flatten(1))


def loss_of(net, batch):
    spectra, labels = batch
    return F.cross_entropy(net(spectra), labels)


def optimizer_of(net):
    return torch.optim.Adam(net.parameters(), lr=5e-4)


def evaluate(net, loader):
    net.eval()
    right = 0
    for spectra, labels in loader:
        right += (net(spectra).argmax(1) == labels).sum().item()
    net.train()
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--target", type=float, default=0.9)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = DataLoader(Data(args.data, "train"), batch_size=32, shuffle=True, num_workers=8)
    test_loader = DataLoader(Data(args.data, "test"), batch_size=1, num_workers=8)
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
