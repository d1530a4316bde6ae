"""ResNet-18 on images of 32x32 to a target accuracy, as in a first script: augmented one by one, fp32, batch 128.

The images are generated: a grating whose direction and pitch tell the class, anywhere in the image, in any
colour, under noise stronger than itself.
"""

import torch
import torch.nn.functional as F
from labelled import evaluate, loss, shortcut, stages
from torch import nn
from torch.utils.data import Dataset

import autoopt

CLASSES = 10
FULL = {"train": 50_000, "valid": 5_000, "channels": 64, "depth": (2, 2, 2, 2), "batch": 128, "target": 0.93,
        "epochs": 15, "evaluate_every": None, "noise": 1.0}  # fmt: skip
TOY = {"train": 96, "valid": 32, "channels": 4, "depth": (1, 1), "batch": 16, "target": 0.3,
       "epochs": 40, "evaluate_every": 6, "noise": 0.2}  # fmt: skip
METRIC = "accuracy"


def images(count, noise, seed):
    """(count, 3, 32, 32) and labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    angle = (labels % 5) * torch.pi / 5
    pitch = torch.where(labels < 5, 0.5, 0.9)
    phase = torch.rand(count, generator=generator) * 2 * torch.pi
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    along = x * torch.cos(angle).view(-1, 1, 1) + y * torch.sin(angle).view(-1, 1, 1)
    wave = torch.sin(along * pitch.view(-1, 1, 1) + phase.view(-1, 1, 1))
    colour = 0.3 + 0.7 * torch.rand(count, 3, 1, 1, generator=generator)
    return wave[:, None] * colour + noise * torch.randn(count, 3, 32, 32, generator=generator), labels


class Images(Dataset):
    """Shifted by up to four pixels in training; no flips, which would turn one class into another."""

    def __init__(self, count, noise, seed, train):
        self.images, self.labels = images(count, noise, seed)
        self.train = train

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.train:
            image = F.pad(image, (4, 4, 4, 4))
            top, left = torch.randint(9, (2,)).tolist()
            image = image[:, top : top + 32, left : left + 32]
        return image, int(self.labels[index])


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x):
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + self.shortcut(x))


def network(channels, depth):
    stem = [nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    layers, width = stages(Basic, channels, depth)
    return nn.Sequential(*stem, *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def optimizer(params, **options):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=5e-4, **options)


def build(size=FULL):
    return autoopt.Workload(
        model=network(size["channels"], size["depth"]),
        train_data=Images(size["train"], size["noise"], 1, True),
        batch_size=size["batch"],
        loss=loss,
        optimizer=optimizer,
        scheduler=lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        valid_data=Images(size["valid"], size["noise"], 2, False),
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=size["target"]),
        max_epochs=size["epochs"],
        evaluate_every=size["evaluate_every"],
    )


def build_toy():
    return build(TOY)
