"""Probabilities in full precision: a low one rounds them to 0 and 1, from where no gradient leads back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Clone", "Select", "T")
"""Nodes of a history that leave the numbers as they are."""


class FullSigmoid(nn.Sigmoid):
    """Probabilities of logits that were computed in a low precision, in float32."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Of a tensor of any shape."""
        low = input.dtype in (torch.bfloat16, torch.float16)
        return torch.sigmoid(input.float() if low else input)


def sigmoids_in_full(model: nn.Module) -> nn.Module:
    """The model, in place, whose sigmoid layers give float32."""
    for module in model.modules():
        if type(module) is nn.Sigmoid:
            module.__class__ = FullSigmoid
    return model


def gives_full_probabilities(model: nn.Module, loss: Callable[[nn.Module], Any], dtype: torch.dtype) -> bool:
    """Whether a model gives probabilities, all of them by its sigmoid layers, in float32 under autocast on a CPU.

    Args:
        model: or several that are called one by one, as parts of one.
        loss: calls the model that it is given on a real batch.
        dtype: of autocast.
    """
    copied, seen = copy.deepcopy(model), list[torch.Tensor]()
    with torch.random.fork_rng(devices=[]), _outermost(copied, lambda output: seen.extend(_probabilities(output))):
        loss(copied)
        plain = len(seen)
        sigmoids_in_full(copied)
        with torch.autocast("cpu", dtype=dtype):
            loss(copied)
    full = seen[plain:]
    return 0 < plain == len(full) and all(each.dtype == torch.float32 for each in full)


@contextmanager
def _outermost(model: nn.Module, gives: Callable[[Any], object]) -> Iterator[None]:
    """Calls ``gives`` with what each call of the model gives, or of a part of it that nothing of it calls."""
    within = 0

    def begun(module: nn.Module, args: Any) -> None:
        nonlocal within
        within += 1

    def ended(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal within
        within -= 1
        if not within:
            gives(output)

    hooks = [each.register_forward_pre_hook(begun) for each in model.modules()]
    hooks += [each.register_forward_hook(ended) for each in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _probabilities(output: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(dict(output) if hasattr(output, "keys") else output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and _maker(leaf) == "Sigmoid"]


def _maker(tensor: torch.Tensor) -> str:
    """The operator that computed a tensor's numbers; empty where it has no history."""
    node = tensor.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0]
        if name not in VIEWS or not node.next_functions:
            return str(name)
        node = node.next_functions[0][0]
    return ""
