"""The siamese script as loadtune wants it: dataset, model, optimizer and one step, taken from the script itself."""

from loadtune.workload import Workload
from main import APP_MATCHER, SiameseNetwork
from torch import nn, optim

_LOSS = nn.BCELoss()


def _step(model, optimizer, batch, device):
    first, second, targets = (part.to(device) for part in batch)
    optimizer.zero_grad()
    loss = _LOSS(model(first, second).squeeze(), targets)
    loss.backward()
    optimizer.step()
    return loss


def get_workload():
    data = lambda: APP_MATCHER("../data", train=True)  # noqa: E731 - as its documentation writes them
    return Workload(
        "siamese_network", data, SiameseNetwork, _step, lambda m: optim.Adadelta(m.parameters(), lr=1.0), 64
    )
