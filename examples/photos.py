"""Which photograph is this piece of? JPEG files, decoded and augmented one by one: input bound.

Twelve photographs that ship inside scikit-image and scikit-learn are cut into JPEG files once, into
the user's cache. Training decodes, jitters and crops each file in Python, as many a first script does.
"""

import os
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import Dataset

import autoopt

SIDE, CROP = 224, 64
PHOTOS = ["astronaut", "brick", "chelsea", "coffee", "grass", "gravel", "hubble_deep_field", "immunohistochemistry",
          "retina", "rocket", "china.jpg", "flower.jpg"]  # fmt: skip


def load_photo(name):
    if name.endswith(".jpg"):
        from sklearn.datasets import load_sample_image

        return Image.fromarray(load_sample_image(name))
    from skimage import data

    return Image.fromarray(getattr(data, name)()).convert("RGB")


def cut(folder):
    """Writes the pieces: cut at random places, so that validation asks for other views of the same photographs."""
    rng = random.Random(0)
    for label, name in enumerate(PHOTOS):
        photo = load_photo(name)
        photo = photo.resize((1000, 1000 * photo.height // photo.width), Image.BICUBIC)
        for split, count in (("train", 100), ("valid", 30)):
            for index in range(count):
                x, y = rng.randint(0, photo.width - SIDE), rng.randint(0, photo.height - SIDE)
                piece = photo.crop((x, y, x + SIDE, y + SIDE))
                piece.save(folder / f"{split}-{label:02d}-{index:03d}.jpg", quality=92)


def photo_files():
    """The folder of JPEG files, cut on first use; another process that cuts at the same time does no harm."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autoopt-examples"
    folder = cache / "photos-4"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=cache))
        cut(part)
        try:
            part.rename(folder)
        except OSError:  # another process was first
            for file in part.iterdir():
                file.unlink()
            part.rmdir()
    return folder


class Photos(Dataset):
    def __init__(self, folder, split, augment):
        self.files = sorted(folder.glob(f"{split}-*.jpg"))
        self.labels = [int(file.name.split("-")[1]) for file in self.files]
        self.augment = augment

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(self.files[index]).convert("RGB")
        box = (0, 0, SIDE, SIDE)
        if self.augment:
            for enhance in (ImageEnhance.Color, ImageEnhance.Brightness, ImageEnhance.Contrast):
                image = enhance(image).enhance(random.uniform(0.8, 1.2))
            side = random.uniform(0.7, 1.0) * SIDE
            x, y = random.uniform(0, SIDE - side), random.uniform(0, SIDE - side)
            box = (x, y, x + side, y + side)
            if random.random() < 0.5:
                image = image.transpose(Image.FLIP_LEFT_RIGHT)
        image = image.resize((CROP, CROP), Image.BICUBIC, box=box)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - 0.5) / 0.25, self.labels[index]


def network(classes):
    layers, width = [], 3
    for out, stride in ((16, 2), (32, 2), (64, 2)):
        layers += [nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


def loss(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def evaluate(model, batches):
    hits = total = 0
    for images, labels in batches:
        hits += (model(images).argmax(1) == labels).sum().item()
        total += len(labels)
    return {"accuracy": hits / total}


def build():
    folder = photo_files()
    return autoopt.Workload(
        model=network(len(PHOTOS)),
        train_data=Photos(folder, "train", augment=True),
        batch_size=32,
        loss=loss,
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        scheduler=lambda optimizer, total_steps: OneCycleLR(optimizer, max_lr=4e-3, total_steps=total_steps),
        valid_data=Photos(folder, "valid", augment=False),
        evaluate=evaluate,
        target=autoopt.Target("accuracy", at_least=0.95),
        max_epochs=14,
    )
