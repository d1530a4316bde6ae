"""ResNet-50 from JPEG files, as in a first script: decoded one by one in the training process, fp32, batch 32.

The network is that of He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, with the
stride in the 3x3 convolution as most frameworks have it. The files are generated once: gratings over
smooth noise, of the size that photographs of ImageNet have on average.
"""

import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from labelled import evaluate, loss, shortcut, stages
from PIL import Image
from torch import nn
from torch.utils.data import Dataset

import autoopt

CLASSES = 16
FULL = {"files": 4096, "width": 500, "height": 375, "crop": 224, "channels": 64, "depth": (3, 4, 6, 3), "batch": 32}
TOY = {"files": 48, "width": 80, "height": 60, "crop": 32, "channels": 8, "depth": (1, 1, 1, 1), "batch": 8}
METRIC = "accuracy"


def jpeg_files(size):
    """The folder with the generated files; written at the first call, moved into place as a whole."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autoopt" / "gpu_cases"
    folder = cache / f"jpeg-{size['files']}-{size['width']}x{size['height']}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        part = Path(made) / "files"
        part.mkdir()
        with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:  # a minute or two in one process
            for _ in pool.map(partial(write, part, size), range(size["files"]), chunksize=16):
                pass
        try:
            part.rename(folder)
        except OSError:  # another process was first
            assert folder.exists()
    return folder


def write(folder, size, number):
    picture(number, size).save(folder / f"{number:05d}-{number % CLASSES:02d}.jpg", quality=90)


def picture(number, size):
    """A grating whose direction and colour tell the class, over smooth noise and some grain."""
    rng = np.random.default_rng(number)
    width, height, label = size["width"], size["height"], number % CLASSES
    angle = np.pi * (label % 8) / 8 + rng.normal(0, 0.04)
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    wave = np.sin((x * np.cos(angle) + y * np.sin(angle)) * 16 * np.pi / width + rng.uniform(0, 2 * np.pi))
    tint = np.array([1.0, 0.6, 0.3] if label < 8 else [0.3, 0.6, 1.0], np.float32)
    coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)).resize((width, height), Image.BICUBIC)
    pixels = 0.6 * np.asarray(coarse, np.float32) + 45 * (1 + wave[..., None]) * tint
    pixels += 6 * rng.standard_normal(pixels.shape, np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


class Jpegs(Dataset):
    """Every eighth file is for validation."""

    def __init__(self, folder, train, crop):
        everything = sorted(folder.glob("*.jpg"))
        self.files = [f for i, f in enumerate(everything) if ((i // CLASSES) % 8 != 0) == train]
        self.train, self.crop = train, crop

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        file = self.files[index]
        image = Image.open(file).convert("RGB")
        width, height = image.size
        if self.train:
            side = int(min(width, height) * np.random.uniform(0.5, 1.0))
            left, top = np.random.randint(width - side + 1), np.random.randint(height - side + 1)
        else:
            side = int(min(width, height) * 0.875)
            left, top = (width - side) // 2, (height - side) // 2
        image = image.resize((self.crop, self.crop), Image.BILINEAR, box=(left, top, left + side, top + side))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
        std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
        return (pixels - mean) / std, int(file.stem[-2:])


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolution around a shortcut."""

    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = 4 * channels
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """The whole network; ``channels`` 64 and ``depth`` (3, 4, 6, 3) make ResNet-50."""

    def __init__(self, channels, depth, classes=1000):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        layers, width = stages(Bottleneck, channels, depth, widening=4)
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))


def optimizer(params, **options):
    return torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-4, **options)


def build(size=FULL):
    folder = jpeg_files(size)
    return autoopt.Workload(
        model=ResNet(size["channels"], size["depth"]),
        train_data=Jpegs(folder, True, size["crop"]),
        batch_size=size["batch"],
        loss=loss,
        optimizer=optimizer,
        valid_data=Jpegs(folder, False, size["crop"]),
        evaluate=evaluate,
        target=autoopt.Target("accuracy"),
        max_epochs=90,
        evaluate_every=None if size is FULL else 5,
    )


def build_toy():
    return build(TOY)
