"""The recurrent script as loadtune wants it: dataset, model, optimizer and one step, taken from the script itself."""

import torch.nn.functional as F
from loadtune.workload import Workload
from main import Net
from torch import optim
from torchvision import datasets, transforms


def _dataset():
    normalize = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    return datasets.MNIST("../data", train=True, transform=normalize)


def _step(model, optimizer, batch, device):
    data, target = (part.to(device) for part in batch)
    optimizer.zero_grad()
    loss = F.nll_loss(model(data), target)
    loss.backward()
    optimizer.step()
    return loss


def get_workload():
    return Workload("mnist_rnn", _dataset, Net, _step, lambda m: optim.Adadelta(m.parameters(), lr=0.1), 64)
