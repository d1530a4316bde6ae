"""A script whose training does not fit into the memory of its device, trained all the same so that it can be watched.

What its backward passes need waits on the host, and its optimizers update one parameter after the other: the same
steps, slowly, in the memory of the weights, their gradients and the optimizer's states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from autoopt.benchmark.cputime import memory
from autoopt.script.loaders import Watcher
from autoopt.script.session import Session

LEFT = 0.1
"""Share of the host's memory that stays free."""
_Kept = tuple[bool, torch.Tensor]
"""Whether it is a copy on the host, and it."""


class Lean(Watcher):
    """Keeps activations on the host from the first training call on.

    Args:
        session: whose device they come from.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kept: Any = None
        self._weights: set[int] = set()

    def root_found(self, model: nn.Module) -> None:
        self._weights |= {_memory_of(parameter) for parameter in model.parameters()}
        if self._kept is None:
            self._kept = torch.autograd.graph.saved_tensors_hooks(self._keep, self._given_back)
            self._kept.__enter__()  # until the process ends

    def optimizer_made(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            if "foreach" in group:
                group["foreach"] = False

    def _keep(self, tensor: torch.Tensor) -> _Kept:
        device = self._session.device
        assert device is not None, "models are called in training"
        movable = tensor.layout == torch.strided and tensor.device == device.torch
        if not movable or _memory_of(tensor) in self._weights:  # which stay anyway
            return False, tensor
        whole, free = memory()
        if free - tensor.nbytes < LEFT * whole:
            return False, tensor  # an error of the device is caught, a kill by the kernel is not
        return True, device.to_host(tensor)

    def _given_back(self, kept: _Kept) -> torch.Tensor:
        moved, tensor = kept
        device = self._session.device
        return device.from_host(tensor) if moved and device is not None else tensor


def _memory_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
