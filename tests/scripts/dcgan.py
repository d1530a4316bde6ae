"""A small DCGAN with a seed of its own, which can be broken in ways that a plan might break it."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
steps, broken = int(sys.argv[1]), sys.argv[2:]


class Adam(torch.optim.Adam):
    """Drops every tenth update where that is wanted."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        return None if "dropped" in broken and self.count % 10 == 0 else super().step(closure)


def weights_init(m):
    if "Conv" in type(m).__name__:
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif "BatchNorm" in type(m).__name__:
        nn.init.normal_(m.weight, 1.0, 0.02)


netG = nn.Sequential(
    nn.ConvTranspose2d(16, 32, 4, 1, 0, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(True),
    nn.ConvTranspose2d(32, 16, 4, 2, 1, bias=False),
    nn.BatchNorm2d(16),
    nn.ReLU(True),
    nn.ConvTranspose2d(16, 3, 4, 2, 1, bias=False),
    nn.Tanh(),
)
netG.apply(weights_init)
netD = nn.Sequential(
    nn.Conv2d(3, 16, 4, 2, 1, bias=False),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(16, 32, 4, 2, 1, bias=False),
    nn.BatchNorm2d(32),
    nn.LeakyReLU(0.2, True),
    nn.Conv2d(32, 1, 4, 1, 0, bias=False),
    nn.Sigmoid(),
)
netD.apply(weights_init)
criterion = nn.BCELoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=1e-4 if "half" in broken else 2e-4, betas=(0.5, 0.999))
optimizerG = Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
images = torch.randn(1024, 3, 16, 16, generator=torch.Generator().manual_seed(5)).mul(0.5).clamp(-1, 1)
loader = DataLoader(TensorDataset(images), batch_size=16, shuffle=True, drop_last=True)
done = 0
while done < steps:
    for (real,) in loader:
        netD.zero_grad()
        errD_real = criterion(netD(real).view(-1), torch.ones(16))
        errD_real.backward()
        fake = netG(torch.randn(16, 16, 1, 1))
        errD_fake = criterion(netD(fake.detach()).view(-1), torch.zeros(16))
        errD_fake.backward()
        optimizerD.step()
        netG.zero_grad()
        errG = criterion(netD(fake.detach() if "detached" in broken else fake).view(-1), torch.ones(16))
        errG.backward()
        optimizerG.step()
        done += 1
        if done >= steps:
            break
