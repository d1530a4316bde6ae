"""Puts ``scaled_dot_product_attention`` into a model, where it is proven to compute the same."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from autoopt_strategies.compute.attention_graph import (
    Refused,
    as_function,
    find,
    record_values,
    rewrite,
    traced,
    without_dropout,
)

TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9, torch.bfloat16: 4e-2, torch.float16: 1e-2}
"""The largest difference that is one to us, in units of the largest number compared."""


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
        _compare(_plain(module), functions[False], module, given)
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
    _compare(as_function(reference), as_function(candidate), module, given)
    final = traced(module, given)
    causal = _rewritten(module, final, given)
    return as_function(final), causal


def _rewritten(module: nn.Module, graph: Any, given: dict[str, Any]) -> bool:
    children = dict(module.named_modules())
    record_values(module, graph, list(given.values()))
    causal = [rewrite(graph, each, children) for each in find(module, graph)]
    return all(causal)


def _compare(one: Callable[..., Any], other: Callable[..., Any], module: nn.Module, given: dict[str, Any]) -> None:
    """Compares outputs and gradients of two forwards on the same input.

    Raises:
        Refused: they differ by more than rounding.
    """
    for expected, got, what in zip(_results(one, module, given), _results(other, module, given), WHAT, strict=True):
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


WHAT = ("outputs", "gradients of the input", "gradients of the parameters")


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
        weights = [
            torch.linspace(-1, 1, out.numel(), device=out.device).view(out.shape).to(out.dtype) for out in outputs
        ]
        loss = sum(
            ((out * weight).sum() for out, weight in zip(outputs, weights, strict=True) if out.requires_grad), 0.0
        )
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


def survey(model: nn.Module, run: Callable[[], Any]) -> dict[str, Any]:
    """What can be rewritten in a model, proven on the real input of one forward pass.

    Args:
        run: one forward pass of the model on a real batch.

    Returns:
        ``modules`` and ``calls`` for :class:`SayAttention`, ``found`` (how many), ``causal`` (how many of them),
        and ``refused``: reasons by name.
    """
    candidates = {name: module for name, module in model.named_modules() if _mentions_softmax(module)}
    inputs: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    handles = [
        module.register_forward_pre_hook(_keep_input(inputs, name), with_kwargs=True)
        for name, module in candidates.items()
    ]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    calls: dict[str, dict[str, Any]] = {}
    refused: dict[str, str] = {}
    causal = 0
    for name, (args, kwargs) in inputs.items():
        module, kind = candidates[name], type(candidates[name])
        try:
            given = bound(module, args, kwargs)
            call = described(given)
            causal += replace_attention(module, given)["causal"]
            calls[name] = call
        except Refused as error:
            refused[name] = str(error)
        finally:
            module.__class__ = kind
    patterns = _patterns(calls)
    return {
        "modules": list(patterns),
        "calls": list(patterns.values()),
        "found": len(calls),
        "causal": causal,
        "refused": refused,
    }


def _keep_input(inputs: dict[str, Any], name: str) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs.setdefault(name, (args, dict(kwargs)))

    return hook


def _mentions_softmax(module: nn.Module) -> bool:
    """Whether a module of the user's has a softmax of its own in its forward."""
    if type(module).__module__.startswith("torch.nn."):
        return False
    if any(isinstance(child, nn.Softmax) for child in module.children()):
        return True
    try:
        return "softmax" in inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        return False


def _patterns(calls: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Names that differ only in numbers as one, where they are called alike."""
    by_pattern: dict[str, list[str]] = {}
    for name in calls:
        by_pattern.setdefault(re.sub(r"(?<![^.])\d+(?![^.])", "*", name), []).append(name)
    found: dict[str, dict[str, Any]] = {}
    for pattern, names in by_pattern.items():
        if all(calls[name] == calls[names[0]] for name in names):
            found[pattern] = calls[names[0]]
        else:
            found |= {name: calls[name] for name in names}
    return found
