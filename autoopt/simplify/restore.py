"""Leaving a training as it was: weights, buffers, optimizer state, gradients, modes and random numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autoopt.simplify.parts import Parts


@contextmanager
def restored(parts: Parts) -> Iterator[None]:
    """Everything that a training step changes is put back when the block ends, however it ends."""
    saved = _Saved(parts)
    try:
        yield
    finally:
        saved.put_back()


class _Saved:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        model = parts.model
        self.tensors = [(tensor, tensor.detach().clone()) for tensor in _tensors(model)]
        self.gradients = [(p, None if p.grad is None else p.grad.detach().clone()) for p in model.parameters()]
        self.modes = [(module, module.training) for module in model.modules()]
        self.optimizer = copy.deepcopy(parts.optimizer.state_dict())
        self.scaler = copy.deepcopy(parts.scaler.state_dict()) if parts.scaler else None
        self.schedule = copy.deepcopy(parts.schedule.state_dict()) if parts.schedule else None
        self.rates = [group["lr"] for group in parts.optimizer.param_groups]
        self.threads = torch.get_num_threads()
        self.random = random_state(parts.device)

    def put_back(self) -> None:
        with torch.no_grad():
            for tensor, value in self.tensors:
                tensor.copy_(value)
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        for module, training in self.modes:
            module.training = training
        self.parts.optimizer.load_state_dict(self.optimizer)
        if self.schedule is not None:
            self.parts.schedule.load_state_dict(self.schedule)
            for group, rate in zip(self.parts.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate
        if self.scaler is not None:
            self.parts.scaler.load_state_dict(self.scaler)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        set_random_state(self.random, self.parts.device)
        if self.parts.forget:
            self.parts.forget()


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def random_state(device: torch.device) -> dict[str, Any]:
    """State of the random numbers of Python, NumPy and torch, the device's included."""
    import numpy as np

    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    import numpy as np

    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
