"""A small convolution net on handwritten digits, trained by accelerate's own loop, in the way of its documentation."""

import sys

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    """Pictures of 28 by 28, shifted at random in training."""

    def __init__(self, train):
        digits = load_digits()
        chosen = slice(0, 1500) if train else slice(1500, None)
        pictures = torch.tensor(digits.images[chosen] / 16.0, dtype=torch.float32)
        self.pictures = F.interpolate(pictures[:, None], size=28)
        self.labels = torch.tensor(digits.target[chosen])
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        picture = self.pictures[index]
        if self.train:
            down, right = torch.randint(-3, 4, (2,)).tolist()
            picture = torch.roll(picture, (down, right), (1, 2))
        return picture, self.labels[index]


def training_function():
    set_seed(int(sys.argv[1]))
    accelerator = Accelerator()
    train_dataloader = DataLoader(Digits(True), shuffle=True, batch_size=32)
    eval_dataloader = DataLoader(Digits(False), batch_size=64)
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64 * 49, 10)),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for epoch in range(30):
        model.train()
        for pictures, labels in train_dataloader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(pictures), labels)
            accelerator.backward(loss)
            optimizer.step()
        model.eval()
        correct, seen = 0, 0
        for pictures, labels in eval_dataloader:
            with torch.no_grad():
                predictions = model(pictures).argmax(dim=-1)
            predictions, references = accelerator.gather_for_metrics((predictions, labels))
            correct += (predictions == references).sum().item()
            seen += len(references)
        accelerator.print(f"epoch {epoch}: eval accuracy {correct / seen:.4f}, train loss {loss.item():.4f}")


if __name__ == "__main__":
    training_function()
