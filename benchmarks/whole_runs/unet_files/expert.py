"""U-Net on pictures and masks in two folders, after the much copied PyTorch implementation."""

import argparse
import copy
import logging
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image
from torch import optim
from torch.utils.data import DataLoader, Dataset, Subset


class BasicDataset(Dataset):
    def __init__(self, images_dir, masks_dir, scale=1.0, augment=False):
        self.images_dir, self.masks_dir = Path(images_dir), Path(masks_dir)
        self.scale, self.augment = scale, augment
        self.ids = sorted(file.stem for file in self.images_dir.iterdir() if not file.name.startswith("."))
        self.samples = [self.load(name) for name in self.ids]  # decoded and resized once; the flip is drawn each time

    def __len__(self):
        return len(self.ids)

    @staticmethod
    def preprocess(pil_img, scale, is_mask):
        w, h = pil_img.size
        new = int(scale * w), int(scale * h)
        pil_img = pil_img.resize(new, resample=Image.NEAREST if is_mask else Image.BICUBIC)
        img = np.asarray(pil_img)
        if is_mask:
            return (img > 0).astype(np.int64)
        img = img.transpose((2, 0, 1))
        return img / 255.0

    def __getitem__(self, idx):
        image, mask = self.samples[idx]
        if self.augment and torch.rand(1).item() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return {"image": image, "mask": mask}

    def load(self, name):
        mask = Image.open(next(self.masks_dir.glob(name + ".*")))
        img = Image.open(next(self.images_dir.glob(name + ".*")))
        assert img.size == mask.size
        img = self.preprocess(img, self.scale, is_mask=False)
        mask = self.preprocess(mask, self.scale, is_mask=True)
        return torch.as_tensor(img.copy()).float().contiguous(), torch.as_tensor(mask.copy()).long().contiguous()


class DoubleConv(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(in_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(out_channels),
            nn.ReLU(inplace=True),
        )

    def forward(self, x):
        return self.double_conv(x)


class Up(nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.conv = DoubleConv(in_channels, out_channels)

    def forward(self, x1, x2):
        return self.conv(torch.cat([x2, self.up(x1)], dim=1))


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes, width):
        super().__init__()
        self.inc = DoubleConv(n_channels, width)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(width, 2 * width))
        self.down2 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(2 * width, 4 * width))
        self.up1 = Up(6 * width, 2 * width)
        self.up2 = Up(3 * width, width)
        self.outc = nn.Conv2d(width, n_classes, kernel_size=1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        return self.outc(self.up2(self.up1(x3, x2), x1))


def dice_coeff(input, target, epsilon=1e-6):
    """Mean over the pictures of the overlap of two masks."""
    inter = 2 * (input * target).sum(dim=(-1, -2))
    sets = input.sum(dim=(-1, -2)) + target.sum(dim=(-1, -2))
    return ((inter + epsilon) / (sets + epsilon)).mean()


def evaluate(net, dataloader, device):
    net.eval()
    dice_score = 0
    with torch.no_grad():
        for batch in dataloader:
            image = batch["image"].to(device, memory_format=torch.channels_last)
            mask_true = batch["mask"].to(device)
            mask_pred = net(image).argmax(dim=1)
            dice_score += dice_coeff(mask_pred.float(), mask_true.float()).item() * len(image)
    net.train()
    return dice_score / len(dataloader.dataset)


def train_model(net, device, args):
    data = args.data
    train_full = BasicDataset(f"{data}/imgs", f"{data}/masks", args.scale, augment=True)
    val_full = copy.copy(train_full)  # the same samples, without the flip
    val_full.augment = False
    order = torch.randperm(len(train_full), generator=torch.Generator().manual_seed(0)).tolist()
    n_val = int(len(order) * 0.2)
    train_set, val_set = Subset(train_full, order[n_val:]), Subset(val_full, order[:n_val])
    loader_args = {"num_workers": args.workers, "pin_memory": torch.cuda.is_available()}
    train_loader = DataLoader(train_set, shuffle=True, batch_size=args.batch_size, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, batch_size=20, **loader_args)

    optimizer = optim.RMSprop(net.parameters(), lr=args.lr, weight_decay=1e-8, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    global_step = 0
    for epoch in range(1, args.epochs + 1):
        net.train()
        epoch_loss = 0
        for batch in train_loader:
            images = batch["image"].to(device, memory_format=torch.channels_last)
            true_masks = batch["mask"].to(device)
            masks_pred = net(images)
            loss = criterion(masks_pred, true_masks)
            probs = F.softmax(masks_pred, dim=1)[:, 1]
            loss = loss + 1 - dice_coeff(probs, true_masks.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.detach()
            division_step = len(train_loader) // 2
            if division_step > 0 and global_step % division_step == 0:
                val_score = evaluate(net, val_loader, device)
                logging.info(f"Validation Dice score: {val_score:.4f}")
        logging.info(f"epoch {epoch} loss {epoch_loss / len(train_loader):.4f}")
        torch.save(net.state_dict(), f"checkpoint_epoch{epoch}.pth")
    val_score = evaluate(net, val_loader, device)
    print(f"final validation dice: {val_score:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the UNet on images and target masks")
    parser.add_argument("--data", default="data")
    parser.add_argument("--epochs", "-e", type=int, default=4)
    parser.add_argument("--batch-size", "-b", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=12)
    parser.add_argument("--scale", "-s", type=float, default=0.375)
    parser.add_argument("--lr", "-l", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = UNet(n_channels=3, n_classes=2, width=args.width).to(device, memory_format=torch.channels_last)
    train_model(net, device, args)
