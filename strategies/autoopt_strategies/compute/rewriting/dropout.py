"""Dropout on a CPU, whose masks are drawn as random bits."""

from __future__ import annotations

import torch
from torch import nn


class BitDropout(nn.Dropout):
    """Dropout whose mask has sixteen random bits for each element, drawn for four of them at once.

    On a CPU torch draws a number of its own for each element. The share that is left out is rounded to a 65536th, and
    what is kept is scaled by the rounded one, so that its mean stays the same.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Of a tensor of any shape."""
        out = round(self.p * 2**16)
        plain = input.layout == torch.strided and input.is_floating_point() and input.device.type == "cpu"
        if not self.training or not 0 < out < 2**16 or not plain:
            return super().forward(input)
        bits = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        kept = bits.view(torch.int16)[: input.numel()].view(input.shape) >= out - 2**15
        return input * (kept.to(input.dtype) * (2**16 / (2**16 - out)))


def draw_by_bits(model: nn.Module) -> nn.Module:
    """The model, in place, with masks of its dropout layers that are drawn as random bits."""
    for module in dropouts_of(model):
        module.__class__ = BitDropout
    return model


def dropouts_of(model: nn.Module) -> list[nn.Module]:
    """Its layers of torch's own dropout that leave something out."""
    return [module for module in model.modules() if type(module) is nn.Dropout and 0.0 < module.p < 1.0]
