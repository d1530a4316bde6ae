"""Dropout on a CPU, whose masks are drawn as random bits."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

PLAIN = F.dropout
"""Torch's own."""


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
