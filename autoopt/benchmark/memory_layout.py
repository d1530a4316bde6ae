"""Transforms of a model that change how its tensors lie in memory alone: taken on for a while, and put off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autoopt.errors import WorkloadError
from autoopt.setup import Transform


def layout_alone(transform: Transform) -> bool:
    """Whether a transform says of itself that it moves tensors, and replaces neither modules nor parameters."""
    return bool(getattr(transform, "layout_alone", False))


@contextmanager
def laid_out(roots: Iterable[nn.Module], optimizers: Iterable[Any], transforms: Sequence[Transform]) -> Iterator[None]:
    """Models under transforms of their layout, the optimizers' state beside it, and then the very tensors they had.

    What is trained meanwhile stays in the tensors of the other layout, which are dropped.

    Args:
        roots: the models.
        optimizers: over their parameters.
        transforms: each ``fn(model) -> model``; empty: nothing is touched.

    Raises:
        WorkloadError: one of them replaces a module or a parameter, which nobody could take off again.
    """
    if not transforms:
        yield
        return
    roots = list(roots)
    parameters = [(p, p.data, p.grad) for root in roots for p in root.parameters()]
    buffers = [(module, dict(module._buffers)) for root in roots for module in root.modules()]
    states = [(state, dict(state)) for optimizer in optimizers for state in optimizer.state.values()]
    try:
        for root in roots:
            _transform(root, transforms)
        for optimizer in optimizers:
            _follow(optimizer)
        for parameter, _, _ in parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, data, gradient in parameters:
            parameter.grad = None  # it lies as the data do
            parameter.data, parameter.grad = data, gradient
        for module, kept in buffers:
            module._buffers.update(kept)
        for state, kept in states:
            state.update(kept)


def _transform(root: nn.Module, transforms: Sequence[Transform]) -> None:
    before = [*map(id, root.modules()), *map(id, root.parameters())]
    for transform in transforms:
        same = transform(root) is root
        if not same or [*map(id, root.modules()), *map(id, root.parameters())] != before:
            raise WorkloadError(f"{transform!r} does more than lay tensors out: a running process cannot take it off")


def _follow(optimizer: Any) -> None:
    """The optimizer's state in its parameters' layout, as it is where a process has started so."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
