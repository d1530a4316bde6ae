"""What can be rewritten in a model, proven on a real batch."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

from torch import nn

from autoopt_strategies.compute.attention.arguments import bound, described
from autoopt_strategies.compute.attention.replace import replace_attention
from autoopt_strategies.compute.attention.trace import Refused


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
