"""Layers that compute otherwise: random bits for dropout on a CPU, full probabilities, float32 for double."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.rewriting.survey import watched

PLAIN = F.dropout
"""Torch's own."""
VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Clone", "Select", "T")
"""Nodes of a history that leave the numbers as they are."""


def dropout_by_bits(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """Dropout whose mask has sixteen random bits for each element, drawn for four of them at once.

    On a CPU torch draws a number of its own for each element. The share that is left out is rounded to a 65536th, and
    what is kept is scaled by the rounded one, so that its mean stays the same.

    Args:
        input: of any shape.
    """
    out = round(p * 2**16)
    plain = input.layout == torch.strided and input.is_floating_point() and input.device.type == "cpu"
    if inplace or not training or not 0 < out < 2**16 or not plain:
        return PLAIN(input, p, training, inplace)
    bits = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[: input.numel()].view(input.shape) >= out - 2**15
    return input * (kept.to(input.dtype) * (2**16 / (2**16 - out)))


class BitDropout(nn.Dropout):
    """A layer of it."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Of a tensor of any shape."""
        return dropout_by_bits(input, self.p, self.training, self.inplace)


def draw_by_bits(model: nn.Module) -> nn.Module:
    """The model, in place, with masks of its dropout layers that are drawn as random bits."""
    for module in dropouts_of(model):
        module.__class__ = BitDropout
    return model


def functions_by_bits(model: nn.Module) -> nn.Module:
    """The model, in place: while it computes, all dropout draws its masks as random bits, layers' and functions'."""
    model.register_forward_pre_hook(begins)
    model.register_forward_hook(ends, always_call=True)
    return model


def begins(model: nn.Module, args: Any) -> None:
    if F.dropout is PLAIN:  # and nothing that somebody has put in its place
        F.dropout = dropout_by_bits


def ends(model: nn.Module, args: Any, output: Any) -> None:
    if F.dropout is dropout_by_bits:
        F.dropout = PLAIN


def dropouts_of(model: nn.Module) -> list[nn.Module]:
    """Its layers of torch's own dropout that leave something out."""
    return [module for module in model.modules() if type(module) is nn.Dropout and 0.0 < module.p < 1.0]


def calls_functions(loss: Callable[[], torch.Tensor]) -> bool:
    """Whether a model calls ``F.dropout`` elsewhere than in layers, and all of it as it computes its loss: what is
    computed again for gradients (checkpointing) is outside of the model's call, where torch's own draws other masks."""
    files, again = list[str](), list[str]()
    seen, plain = files, F.dropout

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if training and 0.0 < p < 1.0:
            seen.append(sys._getframe(1).f_code.co_filename)
        return plain(input, p, training, inplace)

    F.dropout = dropout
    try:
        with torch.random.fork_rng(devices=[]):
            found = loss()
            if all(file == nn.modules.dropout.__file__ for file in files):
                return False
            seen = again
            found.backward()  # type: ignore[no-untyped-call]
    finally:
        F.dropout = plain
    return not again


# Probabilities: a low precision rounds them to 0 and 1, from where no gradient leads back.


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


# Double precision: weights and arithmetic in float32, and float64 for the lines around the model.


def in_float32(model: nn.Module) -> nn.Module:
    """The model, in place, that computes in float32 and takes and gives float64 as before."""
    model.register_forward_pre_hook(takes_float32, with_kwargs=True)
    model.register_forward_hook(gives_float64)
    return model.float()


def takes_float32(model: nn.Module, args: Any, kwargs: Any) -> Any:
    weight = next(model.parameters(), None)
    if weight is not None and weight.dtype == torch.float64:  # a later line made it double
        model.float()
    return _converted((args, kwargs), torch.float64, torch.float32)


def gives_float64(model: nn.Module, args: Any, output: Any) -> Any:
    return _converted(output, torch.float32, torch.float64)


def _converted(values: Any, one: torch.dtype, other: torch.dtype) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda each: each.to(other) if each.dtype == one else each, values)


def gives_full_probabilities(model: nn.Module, loss: Callable[[nn.Module], Any], dtype: torch.dtype) -> bool:
    """Whether a model gives probabilities, all of them by its sigmoid layers, in float32 under autocast on a CPU.

    Args:
        model: or several that are called one by one, as parts of one.
        loss: calls the model that it is given on a real batch.
        dtype: of autocast.
    """
    copied, seen, within = copy.deepcopy(model), list[torch.Tensor](), 0

    def begun(*_: Any) -> None:
        nonlocal within
        within += 1

    def ended(*called: Any) -> None:
        nonlocal within
        within -= 1
        if not within:  # of the model, or of a part of it that nothing of it calls
            seen.extend(_probabilities(called[-1]))

    with torch.random.fork_rng(devices=[]), watched(copied, begun, ended):
        loss(copied)
        plain = len(seen)
        sigmoids_in_full(copied)
        with torch.autocast("cpu", dtype=dtype):
            loss(copied)
    full = seen[plain:]
    return 0 < plain == len(full) and all(each.dtype == torch.float32 for each in full)


def _probabilities(output: Any) -> Iterator[torch.Tensor]:
    """The tensors of an output whose numbers a sigmoid computed."""
    for leaf in pytree.tree_leaves(dict(output) if hasattr(output, "keys") else output):
        node = leaf.grad_fn if isinstance(leaf, torch.Tensor) else None
        while node is not None and node.name().partition("Backward")[0] in VIEWS and node.next_functions:
            node = node.next_functions[0][0]
        if node is not None and node.name().partition("Backward")[0] == "Sigmoid":
            yield leaf
