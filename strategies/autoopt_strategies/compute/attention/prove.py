"""Whether two forwards compute the same: outputs, and gradients of input and parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autoopt_strategies.compute.attention.trace import Refused

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""The largest difference that is one to us, in units of the largest number compared."""

WHAT = ("outputs", "gradients of the input", "gradients of the parameters")


@contextmanager
def full_precision() -> Iterator[None]:
    """Products in full float32: two ways of computing differ by more than rounding where TF32 is on."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compare(one: Callable[..., Any], other: Callable[..., Any], module: nn.Module, given: dict[str, Any]) -> None:
    """Compares outputs and gradients of two forwards on the same input.

    Raises:
        Refused: they differ by more than rounding.
    """
    with full_precision():
        results = _results(one, module, given), _results(other, module, given)
    for expected, got, what in zip(*results, WHAT, strict=True):
        if [a is None for a in expected] != [b is None for b in got]:
            raise Refused(f"the {what} are not the same in number")
        pairs = [(a.detach(), b.detach()) for a, b in zip(expected, got, strict=True) if a is not None]
        largest = max((_size(a) for a, _ in pairs), default=0.0)
        for a, b in pairs:
            if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
                raise Refused(f"the {what} differ in shape or in what is not finite")
            # Some gradients are zero but for rounding (a bias of the keys), so the others' size counts a little.
            limit = TOLERANCE.get(a.dtype, 1e-4) * max(_size(a), 1e-3 * largest, 1e-9)
            off = _size(a.double().nan_to_num(0, 0, 0) - b.double().nan_to_num(0, 0, 0))
            if off > limit:
                raise Refused(f"the {what} differ by {off:.2g}, of {_size(a):.2g}")


def _size(tensor: torch.Tensor) -> float:
    """The largest number in a tensor, those that are not finite left out."""
    return float(tensor.double().nan_to_num(0, 0, 0).abs().max()) if tensor.numel() else 0.0


def _results(function: Callable[..., Any], module: nn.Module, given: dict[str, Any]) -> tuple[list[Any], ...]:
    values = [
        value.detach().clone().requires_grad_(value.is_floating_point()) if isinstance(value, torch.Tensor) else value
        for value in given.values()
    ]
    inputs = [value for value in values if isinstance(value, torch.Tensor) and value.requires_grad]
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = list(_tensors(function(module, *values)))
        loss = sum(((out * _weights(out)).sum() for out in outputs if out.requires_grad), 0.0)
        if not isinstance(loss, torch.Tensor):
            raise Refused("its output has no gradient")
        gradients = torch.autograd.grad(loss, [*inputs, *parameters], allow_unused=True)
    return outputs, list(gradients[: len(inputs)]), list(gradients[len(inputs) :])


def _weights(out: torch.Tensor) -> torch.Tensor:
    """A weight for each number of an output, so that gradients do not cancel."""
    return torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
