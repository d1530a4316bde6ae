"""Sub-pixel super-resolution on the luminance of photographs, after PyTorch's own example."""

import argparse
from os import listdir
from os.path import join

import numpy as np
import torch
from PIL import Image
from torch import nn, optim
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler


def is_image_file(filename):
    return any(filename.endswith(extension) for extension in [".png", ".jpg", ".jpeg"])


def load_img(filepath):
    img = Image.open(filepath).convert("YCbCr")
    y, _, _ = img.split()
    return y


def to_tensor(img):
    return torch.from_numpy(np.array(img, dtype=np.float32)).div(255).unsqueeze(0)


class DatasetFromFolder(Dataset):
    """Four corners of each picture, as large ones and as small ones; all are made once."""

    opened = None

    def __init__(self, image_dir, crop_size, upscale_factor):
        self.image_filenames = sorted(join(image_dir, x) for x in listdir(image_dir) if is_image_file(x))
        self.crop_size, self.upscale_factor = crop_size, upscale_factor
        samples = [self.load(index) for index in range(4 * len(self.image_filenames))]
        self.inputs, self.targets = (torch.stack(tensors) for tensors in zip(*samples, strict=True))

    def __getitem__(self, index):
        """The samples of a whole batch."""
        return self.inputs[index], self.targets[index]

    def load(self, index):
        img = self.image(index // 4)
        left = (img.width - self.crop_size) * (index % 2)
        top = (img.height - self.crop_size) * (index // 2 % 2)
        target = img.crop((left, top, left + self.crop_size, top + self.crop_size))
        small = self.crop_size // self.upscale_factor
        return to_tensor(target.resize((small, small), Image.BICUBIC)), to_tensor(target)

    def image(self, number):
        if number != self.opened:  # its four corners come one after the other
            self.opened, self.last = number, load_img(self.image_filenames[number])
        return self.last

    def __len__(self):
        return 4 * len(self.image_filenames)


class Net(nn.Module):
    def __init__(self, upscale_factor):
        super().__init__()
        self.relu = nn.ReLU()
        self.conv1 = nn.Conv2d(1, 64, (5, 5), (1, 1), (2, 2))
        self.conv2 = nn.Conv2d(64, 64, (3, 3), (1, 1), (1, 1))
        self.conv3 = nn.Conv2d(64, 32, (3, 3), (1, 1), (1, 1))
        self.conv4 = nn.Conv2d(32, upscale_factor**2, (3, 3), (1, 1), (1, 1))
        self.pixel_shuffle = nn.PixelShuffle(upscale_factor)
        for conv in (self.conv1, self.conv2, self.conv3):
            nn.init.orthogonal_(conv.weight, nn.init.calculate_gain("relu"))
        nn.init.orthogonal_(self.conv4.weight)

    def forward(self, x):
        x = self.relu(self.conv1(x))
        x = self.relu(self.conv2(x))
        x = self.relu(self.conv3(x))
        return self.pixel_shuffle(self.conv4(x))


def train(epoch):
    epoch_loss = 0
    for iteration, batch in enumerate(training_data_loader, 1):
        input, target = batch[0].to(device), batch[1].to(device)
        optimizer.zero_grad()
        loss = criterion(model(input), target)
        epoch_loss += loss.detach()
        loss.backward()
        optimizer.step()
        if iteration % 20 == 0:
            print(f"===> Epoch[{epoch}]({iteration}/{len(training_data_loader)}): Loss: {loss.item():.5f}")
    print(f"===> Epoch {epoch} Complete: Avg. Loss: {epoch_loss / len(training_data_loader):.5f}")


def test():
    avg_psnr = 0
    with torch.no_grad():
        for batch in testing_data_loader:
            input, target = batch[0].to(device), batch[1].to(device)
            prediction = model(input)
            errors = (prediction - target).square().mean(dim=(1, 2, 3))
            avg_psnr += (-10 * errors.log10()).sum().item()
    avg_psnr /= len(test_set)
    print(f"===> Avg. PSNR: {avg_psnr:.4f} dB")
    return avg_psnr


parser = argparse.ArgumentParser(description="PyTorch Super Res Example")
parser.add_argument("--data", default="data")
parser.add_argument("--upscale_factor", type=int, default=2, help="super resolution upscale factor")
parser.add_argument("--crop_size", type=int, default=72)
parser.add_argument("--batchSize", type=int, default=16, help="training batch size")
parser.add_argument("--nEpochs", "--epochs", type=int, default=3, help="number of epochs to train for")
parser.add_argument("--lr", type=float, default=0.001, help="learning rate")
parser.add_argument("--seed", type=int, default=123, help="random seed to use")
opt = parser.parse_args()

torch.manual_seed(opt.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

train_set = DatasetFromFolder(join(opt.data, "train"), opt.crop_size, opt.upscale_factor)
test_set = DatasetFromFolder(join(opt.data, "test"), opt.crop_size, opt.upscale_factor)
training_data_loader = DataLoader(
    train_set, sampler=BatchSampler(RandomSampler(train_set), opt.batchSize, drop_last=False), batch_size=None
)
testing_data_loader = DataLoader(
    test_set, sampler=BatchSampler(SequentialSampler(test_set), 64, drop_last=False), batch_size=None
)

model = Net(upscale_factor=opt.upscale_factor).to(device, memory_format=torch.channels_last)
criterion = nn.MSELoss()
optimizer = optim.Adam(model.parameters(), lr=opt.lr, fused=True)

for epoch in range(1, opt.nEpochs + 1):
    train(epoch)
    psnr = test()
    torch.save(model, f"model_epoch_{epoch}.pth")
print(f"final psnr: {psnr:.4f}")
