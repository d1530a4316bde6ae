"""Leaving a training as it was: weights, buffers, optimizer state, gradients, modes and random numbers."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

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
        aside = _aside(parts)
        self.tensors = [(tensor, aside(tensor)) for tensor in _tensors(model)]
        self.gradients = [(p, None if p.grad is None else aside(p.grad)) for p in model.parameters()]
        self.modes = [(module, module.training) for module in model.modules()]
        self.optimizer = _optimizer_state(parts, aside)
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
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
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


def _aside(parts: Parts) -> Callable[[torch.Tensor], torch.Tensor]:
    """Where copies are kept: on the device while it has twice the room for them, else on the host."""
    if parts.device.type != "cuda":
        return lambda tensor: tensor.detach().clone()
    state = [leaf for leaf in tree_leaves(parts.optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
    gradients = [p.grad for p in parts.model.parameters() if p.grad is not None]
    size = sum(t.numel() * t.element_size() for t in [*_tensors(parts.model), *gradients, *state])
    if 2 * size < torch.cuda.mem_get_info(parts.device)[0]:
        return lambda tensor: tensor.detach().clone()
    return lambda tensor: tensor.detach().to("cpu", copy=True)


def _optimizer_state(parts: Parts, aside: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The optimizer's state with its tensors set aside, everything else copied."""
    leaves, structure = tree_flatten(parts.optimizer.state_dict())
    kept = [aside(leaf) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf) for leaf in leaves]
    return tree_unflatten(kept, structure)


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
