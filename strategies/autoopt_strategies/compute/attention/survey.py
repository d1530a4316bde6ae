"""Attention that can be rewritten in a model: found while it runs on a real batch, and proven equal."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from autoopt_strategies.compute.attention.capture import Refused, first_line
from autoopt_strategies.compute.attention.forward import RewriteAttention, without_cache
from autoopt_strategies.compute.attention.prove import NoDropout, check, full_precision
from autoopt_strategies.compute.attention.proven import Known

NOTHING: dict[str, Any] = {"modules": [], "forwards": [], "found": 0, "causal": 0, "cache": True}

WHOLE = 1e-2
"""The largest difference of a whole model's loss and gradients that is rounding, in units of the largest number."""

OUTWARDS = 3
"""Modules further out that are looked at where attention is spread over several."""

SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)
NUMBER = r"(?<![^.])\d+(?![^.])"
Call = tuple[tuple[Any, ...], dict[str, Any]]


def rewrite(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Rewrites the hand-written attention of a model in place, as far as it is proven on an example of its input.

    Args:
        model: on its device.
        args, kwargs: a call of the model, with a real batch.

    Returns:
        As :func:`survey`.
    """

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            model(*args, **kwargs)

    found = survey(model, run)
    if not found["modules"]:
        return found
    change = RewriteAttention(tuple(found["modules"]), tuple(found["forwards"]), found["cache"])
    plain, changed = copy.deepcopy(model), change(copy.deepcopy(model))
    if not found["cache"]:
        without_cache(plain)
    if not same(_outputs(plain, args, kwargs), lambda: _outputs(changed, args, kwargs)):
        found["refused"][""] = "the rewritten model computes something else"
        return found | NOTHING
    change(model)
    return found


def _outputs(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor | None]:
    """The output of a model, without dropout."""
    with torch.no_grad(), torch.random.fork_rng(), full_precision(), NoDropout():
        torch.manual_seed(0)
        leaves = pytree.tree_leaves(model(*args, **kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def survey(model: nn.Module, run: Callable[[], Any]) -> dict[str, Any]:
    """The rewrites that a model allows, proven on the real input of one forward pass.

    Args:
        run: one forward pass of the model on a real batch.

    Returns:
        ``modules`` and ``forwards`` for :class:`RewriteAttention`, ``found`` (how many modules), ``causal`` (in how
        many of them every mask is causal alone), ``cache`` (False where it must be turned off), and ``refused``:
        reasons by name.
    """
    configs = without_cache(model)
    try:
        return _survey(model, run)
    finally:
        for config in configs:
            config.use_cache = True


def _survey(model: nn.Module, run: Callable[[], Any]) -> dict[str, Any]:
    known = Known()
    forwards = known.forwards
    refused: dict[str, str] = {}
    for path, call in attending(model, run).items():
        if any(inside(path, name) or inside(name, path) for name in forwards):
            continue
        reasons: dict[str, str] = {}
        for name in outwards(path, call):
            module = model.get_submodule(name)
            try:
                known.add(name, module, *call[name])
            except Refused as error:
                reasons[name] = str(error)
                if error.outside:
                    continue
            except Exception as error:  # a model that does not like to be looked at is left alone, too
                reasons[name] = f"it cannot be looked at: {first_line(error)}"
            break
        if name not in forwards:
            refused[path] = next(iter(reasons.values()))
    patterns = compressed(model, forwards)
    return {
        "modules": list(patterns),
        "forwards": list(patterns.values()),
        "found": len(forwards),
        "causal": sum(known.causal.values()),
        "cache": not any(re.search("past|cache", name) for forward in forwards.values() for name in forward["call"]),
        "refused": refused,
    }


def inside(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.") or other == ""


def outwards(path: str, calls: dict[str, Call]) -> list[str]:
    """The module itself and those that call it, the nearest first."""
    return sorted((name for name in calls if inside(path, name)), key=len, reverse=True)[: OUTWARDS + 1]


def attending(model: nn.Module, run: Callable[[], Any]) -> dict[str, dict[str, Call]]:
    """Modules in whose own forward a softmax of scores is computed, with their call and the calls around them."""
    found: dict[str, dict[str, Call]] = {}
    with following(model) as stack:

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                if func in SOFTMAX and result.dim() >= 3 and stack:
                    own = [name for name, kind, _ in stack if kind is not nn.Softmax]
                    if own and own[-1] not in found:
                        found[own[-1]] = {name: call for name, _, call in stack if name in own}
                return result

        with Watch(), torch.compiler.set_stance("force_eager"):
            run()
    return found


@contextmanager
def following(model: nn.Module) -> Iterator[list[tuple[str, type, Call]]]:
    """The modules whose forward runs at the moment, the innermost last."""
    stack: list[tuple[str, type, Call]] = []

    def enter(name: str) -> Callable[..., None]:
        return lambda module, args, kwargs: stack.append((name, type(module), (args, dict(kwargs))))

    def leave(*_: Any) -> None:
        stack.pop()

    handles = [
        handle
        for name, module in model.named_modules()
        for handle in (
            module.register_forward_pre_hook(enter(name), with_kwargs=True, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        )
    ]
    try:
        yield stack
    finally:
        for handle in handles:
            handle.remove()


def compressed(model: nn.Module, forwards: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Names that differ only in numbers as one, where they have the same forward and no other module is named so."""
    by_pattern: dict[str, list[str]] = {}
    for name in forwards:
        by_pattern.setdefault(re.sub(NUMBER, "*", name), []).append(name)
    alike: dict[str, int] = {}
    for name, _ in model.named_modules():
        pattern = re.sub(NUMBER, "*", name)
        alike[pattern] = alike.get(pattern, 0) + 1
    found: dict[str, dict[str, Any]] = {}
    for pattern, names in by_pattern.items():
        if all(forwards[name] is forwards[names[0]] for name in names) and alike[pattern] == len(names):
            found[pattern] = forwards[names[0]]
        else:
            found |= {name: forwards[name] for name in names}
    return found


def survey_training(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, switch: Callable[[nn.Module], int]
) -> dict[str, Any]:
    """The changes that a model trained by a loss allows, proven on copies with a real batch.

    Args:
        loss: ``loss(model, batch)``.
        switch: switches a model whose library offers the choice; the number of places.

    Returns:
        As :func:`survey`, and ``switch``: whether there is something to switch. Nothing is left that does not give
        the same loss and gradients of the whole model.
    """
    copied = copy.deepcopy(model)

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            loss(copied, batch)

    expected: list[torch.Tensor | None] = []  # computed where there is something to compare with it
    found: dict[str, Any] = {"switch": False, "modules": [], "forwards": [], "refused": {}}
    if switch(copied):
        expected = gradients(model, loss, batch)
        found["switch"] = same(expected, lambda: gradients(copied, loss, batch))
        if not found["switch"]:
            found["refused"][""] = "the library's own implementation gives other gradients on a batch"
            copied = copy.deepcopy(model)
    rewritten = survey(copied, run)
    refused = found["refused"] | rewritten.pop("refused")
    RewriteAttention(tuple(rewritten["modules"]), tuple(rewritten["forwards"]), rewritten["cache"])(copied)
    if rewritten["modules"] and not same(
        expected or gradients(model, loss, batch), lambda: gradients(copied, loss, batch)
    ):
        refused[""] = "the rewritten model gives another loss or other gradients on a batch"
        rewritten |= NOTHING
    return found | rewritten | {"refused": refused}


def gradients(model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> list[torch.Tensor | None]:
    """The loss of a batch and the gradients of a copy's parameters, without dropout."""
    tried = copy.deepcopy(model)
    with torch.enable_grad(), torch.random.fork_rng(), full_precision():
        torch.manual_seed(0)
        with NoDropout():
            value = loss(tried, batch)
        parameters = [parameter for parameter in tried.parameters() if parameter.requires_grad]
        return [value.detach(), *torch.autograd.grad(value, parameters, allow_unused=True)]


def same(expected: list[torch.Tensor | None], got: Callable[[], list[torch.Tensor | None]]) -> bool:
    """Whether the whole model computes the same, as far as rounding lets many layers."""
    try:
        check(expected, got(), "loss and gradients", share=WHOLE)
    except Exception:  # a caller that reads what the library's own implementation leaves out
        return False
    return True
