"""How a module is called, as plain data: a plan holds it, and arguments like it are made again."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from autoopt_strategies.compute.attention.trace import Refused


def bound(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, in the order of the forward, defaults included.

    Raises:
        Refused: a forward that takes any number of them.
    """
    signature = inspect.signature(module.forward)
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise Refused("its forward takes any arguments")
    found = signature.bind(*args, **kwargs)
    found.apply_defaults()
    return dict(found.arguments)


def described(given: dict[str, Any]) -> dict[str, Any]:
    """A call as plain data.

    Raises:
        Refused: an argument that is neither a tensor nor plain.
    """
    call: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, torch.Tensor):
            call[name] = {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
        elif value is None or isinstance(value, (bool, int, float, str)):
            call[name] = value
        else:
            raise Refused(f"its argument {name} is a {type(value).__name__}")
    return call


def example(call: dict[str, Any], module: nn.Module) -> dict[str, Any]:
    """Arguments like those of a call, with numbers that are always the same."""
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    given: dict[str, Any] = {}
    for name, value in call.items():
        if not isinstance(value, dict):
            given[name] = value
            continue
        shape, dtype = value["shape"], getattr(torch, value["dtype"])
        if dtype.is_floating_point:
            made = torch.randn(shape, generator=generator).to(dtype)
        elif dtype == torch.bool:
            made = torch.ones(shape, dtype=dtype)
        else:
            made = torch.zeros(shape, dtype=dtype)
        given[name] = made.to(device)
    return given
