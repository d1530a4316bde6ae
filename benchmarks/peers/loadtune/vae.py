"""The VAE script as loadtune wants it: dataset, model, optimizer and one step, taken from the script itself."""

import sys

from loadtune.workload import Workload
from torch import optim
from torchvision import datasets, transforms

_words, sys.argv = sys.argv, sys.argv[:1]  # the script reads its options where it is imported
from main import VAE, loss_function  # noqa: E402

sys.argv = _words


def _step(model, optimizer, batch, device):
    data = batch[0].to(device)
    optimizer.zero_grad()
    reconstructed, mu, logvar = model(data)
    loss = loss_function(reconstructed, data, mu, logvar)
    loss.backward()
    optimizer.step()
    return loss


def get_workload():
    data = lambda: datasets.MNIST("../data", train=True, transform=transforms.ToTensor())  # noqa: E731
    return Workload("vae", data, VAE, _step, lambda m: optim.Adam(m.parameters(), lr=1e-3), 128)
