"""The state of a training, kept beside it and put back in place: the same tensors with the values they had."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import psutil
import torch
from torch import nn

from autoopt.benchmark.seeding import random_state, set_random_state
from autoopt.errors import WorkloadError

ROOM = 4
"""Times the bytes of the state that must be free for it to be kept where it is: what runs beside it needs room, too."""


class KeptState:
    """Weights, buffers, optimizers and random generators as they are now.

    Args:
        model: with its parameters and buffers.
        optimizers: over them; what is in their groups besides is kept, too.
        device: where the state is.

    Raises:
        WorkloadError: there is no room for it.
    """

    def __init__(self, model: nn.Module, optimizers: Iterable[Any], device: torch.device) -> None:
        self._optimizers = [_KeptOptimizer(optimizer) for optimizer in optimizers]
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}
        for optimizer in self._optimizers:
            tensors |= {id(t): t for t in optimizer.tensors()}
        where = _room_for(sum(t.numel() * t.element_size() for t in tensors.values()), device)
        with torch.no_grad():
            self._tensors = [(t, t.detach().to(where, copy=True)) for t in tensors.values()]
        self._random = random_state()

    def put_back(self) -> None:
        """Everything as it was, gradients gone."""
        with torch.no_grad():
            for tensor, value in self._tensors:
                tensor.copy_(value)
        for optimizer in self._optimizers:
            optimizer.put_back()
        set_random_state(self._random)


class _KeptOptimizer:
    """An optimizer's own attributes, groups and state; the tensors in them are named, not copied."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._attributes = dict(optimizer.__dict__)
        self._groups = [dict(group) for group in optimizer.param_groups]
        self._state = {parameter: dict(state) for parameter, state in optimizer.state.items()}

    def tensors(self) -> Iterator[torch.Tensor]:
        for group in self._groups:
            yield from group["params"]
            yield from (value for value in group.values() if isinstance(value, torch.Tensor))
        for state in self._state.values():
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))

    def put_back(self) -> None:
        optimizer = self._optimizer
        for group, kept in zip(self._attributes["param_groups"], self._groups, strict=True):
            group.clear()
            group.update(kept)
            for parameter in group["params"]:
                parameter.grad = None
        optimizer.__dict__.clear()
        optimizer.__dict__.update(self._attributes)
        optimizer.state.clear()
        for parameter, state in self._state.items():
            optimizer.state[parameter] = dict(state)


def _room_for(size: int, device: torch.device) -> torch.device:
    """Where so many bytes are kept: on the device where it has plenty, else in the host's memory.

    Raises:
        WorkloadError: neither has.
    """
    if device.type == "cuda" and ROOM * size < torch.cuda.mem_get_info(device)[0]:
        return device
    if ROOM * size >= psutil.virtual_memory().available:
        raise WorkloadError(f"there is no room to keep {size / 2**20:.0f} MiB of the training's state beside it")
    return torch.device("cpu")
