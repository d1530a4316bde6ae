"""Gives modules a forward that uses ``scaled_dot_product_attention``, where it is proven to compute the same."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoopt_strategies.compute.attention.arguments import example
from autoopt_strategies.compute.attention.find import find
from autoopt_strategies.compute.attention.prove import compare
from autoopt_strategies.compute.attention.say import rewrite, without_dropout
from autoopt_strategies.compute.attention.trace import Refused, as_function, record_values, traced


@dataclass(frozen=True)
class SayAttention:
    """``model -> model`` with hand-written attention said in one operator.

    Args:
        modules: names of modules, ``*`` for a number.
        calls: how each is called: names of arguments, in order, to the shape and dtype of a tensor, or a value.
    """

    modules: tuple[str, ...]
    calls: tuple[dict[str, Any], ...]

    def __call__(self, model: nn.Module) -> nn.Module:
        for name, module in list(model.named_modules()):
            for pattern, call in zip(self.modules, self.calls, strict=True):
                if not re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), name):
                    continue
                try:
                    replace_attention(module, example(call, module))
                except Refused as refused:
                    warnings.warn(f"{name}: attention is left as it is: {refused}", stacklevel=2)
        return model


def replace_attention(module: nn.Module, given: dict[str, Any]) -> dict[str, Any]:
    """Gives one module a forward that uses ``scaled_dot_product_attention``.

    Args:
        module: whose forward holds attention.
        given: arguments of a call, by name, defaults included; on the module's device.

    Returns:
        ``{"causal": whether the mask was recognized as causal}``.

    Raises:
        Refused: why it stays as it is.
    """
    mode = module.training
    try:
        functions, causal = {}, False
        for training in (True, False):
            _set_mode(module, training)
            functions[training], causal = _proven(module, given)
        _set_mode(module, False)
        compare(_plain(module), functions[False], module, given)
    finally:
        _set_mode(module, mode)
    module.__class__ = _said(type(module), functions, given)
    return {"causal": causal}


def _set_mode(module: nn.Module, training: bool) -> None:
    """Mode of a module and of its direct dropout, which the trace reads."""
    module.training = training
    for child in module.children():
        if isinstance(child, nn.Dropout):
            child.training = training


def _plain(module: nn.Module) -> Callable[..., Any]:
    return type(module).forward


def _proven(module: nn.Module, given: dict[str, Any]) -> tuple[Callable[..., Any], bool]:
    """The rewritten forward of the module's present mode, equal but for dropout."""
    children = dict(module.named_modules())
    reference = traced(module, given)
    without_dropout(reference, children)
    candidate = traced(module, given)
    without_dropout(candidate, children)
    _rewritten(module, candidate, given)
    compare(as_function(reference), as_function(candidate), module, given)
    final = traced(module, given)
    causal = _rewritten(module, final, given)
    return as_function(final), causal


def _rewritten(module: nn.Module, graph: Any, given: dict[str, Any]) -> bool:
    children = dict(module.named_modules())
    record_values(module, graph, list(given.values()))
    causal = [rewrite(graph, each, children) for each in find(module, graph)]
    return all(causal)


def _said(kind: type, functions: dict[bool, Callable[..., Any]], given: dict[str, Any]) -> type:
    """A class like the module's own whose forward is the rewritten one for calls like the proven one."""
    names = tuple(given)
    kinds = tuple(value.dim() if isinstance(value, torch.Tensor) else None for value in given.values())
    values = tuple(None if isinstance(value, torch.Tensor) else value for value in given.values())
    plain = kind.forward  # type: ignore[attr-defined]
    defaults = tuple(
        None if parameter.default is inspect.Parameter.empty else parameter.default
        for parameter in list(inspect.signature(plain).parameters.values())[1:]
    )
    in_training, in_evaluation = functions[True], functions[False]

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        given_now = [*args]
        for name, default in zip(names[len(args) :], defaults[len(args) :], strict=True):
            given_now.append(kwargs.get(name, default))
        for value, rank, wanted in zip(given_now, kinds, values, strict=True):
            if isinstance(value, torch.Tensor):
                if rank != value.dim():
                    return plain(self, *args, **kwargs)
            elif rank is not None or value != wanted:
                return plain(self, *args, **kwargs)
        return in_training(self, *given_now) if self.training else in_evaluation(self, *given_now)

    body = {
        "forward": forward,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), body)
