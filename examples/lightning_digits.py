"""Handwritten digits as a LightningModule with a DataModule and a Trainer: autoopt takes the three as they are.

Each image is scaled up and its contrast spread whenever it is read: input bound.
"""

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import EarlyStopping
from skimage.exposure import rescale_intensity
from skimage.transform import resize
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split


class Images(Dataset):
    """Handwritten digits of 8 by 8 pixels, prepared one by one."""

    def __init__(self):
        self.digits = load_digits()

    def __len__(self):
        return len(self.digits.images)

    def __getitem__(self, index):
        image = rescale_intensity(resize(self.digits.images[index], (16, 16), order=3), out_range=(0.0, 1.0))
        return torch.from_numpy(image).float()[None], int(self.digits.target[index])


class Digits(lightning.LightningDataModule):
    def setup(self, stage):
        generator = torch.Generator().manual_seed(1)
        self.train, self.valid = random_split(Images(), [1437, 360], generator=generator)

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.valid, batch_size=120)


class Classifier(lightning.LightningModule):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 64, 10),
        )  # fmt: skip

    def forward(self, images):
        return self.layers(images)

    def training_step(self, batch, index):
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, index):
        images, labels = batch
        self.log("accuracy", (self(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = int(self.trainer.estimated_stepping_batches)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def build():
    trainer = lightning.Trainer(
        max_epochs=20,
        accelerator="auto",
        devices=1,
        callbacks=[EarlyStopping("accuracy", mode="max", stopping_threshold=0.975, patience=20)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    return trainer, Classifier(), Digits()


if __name__ == "__main__":
    trainer, module, data = build()
    trainer.fit(module, data)
