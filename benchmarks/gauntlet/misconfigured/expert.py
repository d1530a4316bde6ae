"""The same spectrograms: made once, all at a time; no workers; the evaluation in one batch."""

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset


def spectra_of(folder, split):
    file = np.load(f"{folder}/{split}.npz")
    waves = torch.from_numpy(file["waves"]).float() / 32768
    window = torch.from_numpy(np.hanning(256)).float()
    power = torch.stft(waves, 256, 128, window=window, center=False, return_complex=True).abs() ** 2
    return TensorDataset(torch.log(power + 1e-6), torch.from_numpy(file["labels"]))


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
    return torch.optim.Adam(net.parameters(), lr=5e-4, fused=True)


def evaluate(net, loader, wait):
    net.eval()
    right = count = 0
    with torch.no_grad():
        for spectra, labels in loader:
            time.sleep(wait * len(labels))
            right, count = right + (net(spectra).argmax(1) == labels).sum().item(), count + len(labels)
    net.train()
    return right / count


def loader_of(data, sampler, size):
    return DataLoader(data, sampler=BatchSampler(sampler(data), size, drop_last=False), batch_size=None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--wait", type=float, default=0.0, help="placebo: seconds of a device for a sample")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_loader = loader_of(spectra_of(args.data, "train"), RandomSampler, 32)
    test_loader = loader_of(spectra_of(args.data, "test"), SequentialSampler, 400)
    net = Net(args.width)
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
