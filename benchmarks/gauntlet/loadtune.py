"""A case as loadtune wants it: dataset, model, optimizer and one step, taken from the script beside this file."""

import os
import sys

from loadtune.workload import Workload

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from train import Data, Net, loss_of, optimizer_of


def _step(model, optimizer, batch, device):
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    optimizer.step()
    return loss


def get_workload():
    return Workload("case", lambda: Data(os.environ["CASE_DATA"], "train"), Net, _step, optimizer_of, 32)
