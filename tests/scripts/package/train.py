import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

from .model import build


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100000)
    steps = parser.parse_args().steps
    x = torch.randn(96, 10)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=12, shuffle=True)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    done = 0
    while done < steps:
        for inputs, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1


if __name__ == "__main__":
    main()
