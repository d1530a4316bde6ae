"""Attention that can be rewritten in a model: found while it runs on a real batch, and checked on copies."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from autoopt_strategies.compute.attention.backends import attends
from autoopt_strategies.compute.attention.forward import RewriteAttention, rewritten, text_of
from autoopt_strategies.compute.attention.prove import bound, check, compare, first_line, gradients, one_smaller
from autoopt_strategies.compute.attention.source import Refused, variants

WHOLE = 1e-2
"""The largest difference of a whole model's loss and gradients that is rounding, in units of the largest number."""

SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)
TORCH = str(Path(torch.__file__).parent)
Call = tuple[tuple[Any, ...], dict[str, Any]]


def rewrite(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Edits the hand-written attention of a model in place, as far as it is checked on a call of the model.

    Returns:
        As :func:`survey`.
    """

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            model(*args, **kwargs)

    found = survey(model, run)
    RewriteAttention(tuple(found["functions"]))(model)
    return found


def survey(model: nn.Module, run: Callable[[], Any]) -> dict[str, Any]:
    """The methods whose attention can be edited, checked on the real input of one forward pass.

    Args:
        run: one forward pass of the model on a real batch.

    Returns:
        ``functions`` for :class:`RewriteAttention`, each with its ``file``; ``found`` (how many modules), ``causal``
        (how many of them without a mask of their own), and ``refused``: reasons by the modules' names.
    """
    functions: dict[CodeType, dict[str, str]] = {}
    reasons: dict[CodeType, str] = {}
    refused: dict[str, str] = {}
    found = causal = 0
    for path, (code, call) in attending(model, run).items():
        module = model.get_submodule(path)
        if code not in functions and code not in reasons:
            try:
                functions[code] = _checked(module, code, call)
            except Refused as reason:
                reasons[code] = str(reason)
            except Exception as error:  # a model that does not like to be examined is left alone, too
                reasons[code] = f"it cannot be read: {first_line(error)}"
        if code in functions:
            found += 1
            causal += functions[code]["mask"] == "causal"
        else:
            refused[path] = reasons[code]
    return {"functions": list(functions.values()), "found": found, "causal": causal, "refused": refused}


def attending(model: nn.Module, run: Callable[[], Any]) -> dict[str, tuple[CodeType, Call]]:
    """Modules during whose forward a softmax is computed, the function that computes it, and the module's call."""
    found: dict[str, tuple[CodeType, Call]] = {}
    with following(model) as stack:

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                own = [each for each in stack if each[1] is not nn.Softmax]
                if func in SOFTMAX and result.dim() >= 3 and own and own[-1][0] not in found:
                    frame = sys._getframe(1)
                    while frame.f_back is not None and frame.f_code.co_filename.startswith(TORCH):
                        frame = frame.f_back
                    found[own[-1][0]] = frame.f_code, own[-1][2]
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


def _checked(module: nn.Module, code: CodeType, call: Call) -> dict[str, str]:
    """The variant of a function that computes the same, in both modes, at two lengths and under autocast.

    Raises:
        Refused: there is none.
    """
    if "forward" in vars(module):
        raise Refused("its forward was replaced from outside")
    methods = [item for kind in type(module).__mro__ for item in vars(kind).values()]
    method = next((item for item in methods if getattr(item, "__code__", None) is code), None)
    if method is None:
        raise Refused(f"{code.co_name} is no method of {type(module).__name__}, or a decorated one")
    given, twin, reasons = bound(module, *call), _twin(module), []
    file = os.path.relpath(code.co_filename)
    where = {"module": method.__module__, "function": method.__qualname__}
    where["file"] = code.co_filename if file.startswith(os.pardir) else file
    causal = frozenset(name for name, tensor in _tensors(module) if _lets_see_earlier(tensor))
    for scale, mask in variants(text_of(method), method.__qualname__, causal):
        wanted = where | {"scale": scale, "mask": mask}
        try:
            rewritten(method, wanted)
            for training in (True, False):
                plain = _twin(twin).train(training)
                changed = RewriteAttention((wanted,))(_twin(twin)).train(training)
                for each in (given, one_smaller(plain, given)):
                    compare(plain, changed, each)
                compare(plain, changed, given, torch.bfloat16)
        except Refused as reason:
            reasons.append(reason)
            continue
        return wanted
    raise reasons[0]


def _twin(module: nn.Module) -> nn.Module:
    """A copy without hooks."""
    try:
        twin = copy.deepcopy(module)
    except Exception as error:
        raise Refused(f"it cannot be copied: {type(error).__name__}") from None
    for each in twin.modules():
        each._forward_hooks.clear()
        each._forward_pre_hooks.clear()
    return twin


def _tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    held = {**vars(module), **dict(module.named_buffers(recurse=False))}
    return [(name, tensor) for name, tensor in held.items() if isinstance(tensor, torch.Tensor)]


def _lets_see_earlier(mask: torch.Tensor) -> bool:
    """Whether a table, at its whole length, lets each place see those up to its own: true, one or zero there alone."""
    if mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.numel() != mask.shape[-1] ** 2 or mask.numel() < 4:
        return False
    square = mask.detach().reshape(mask.shape[-2:])
    earlier = torch.ones_like(square, dtype=torch.bool).tril()
    below, above = square[earlier], square[~earlier]
    return bool((below == below[0]).all() and (above == above[0]).all() and below[0] != above[0])


def survey_training(
    model: nn.Module, loss: Callable[[Any, Any], Any], batch: Any, switch: Callable[[nn.Module], int]
) -> dict[str, Any]:
    """The changes that a model trained by a loss allows, checked on copies with a real batch.

    Args:
        loss: ``loss(model, batch)``.
        switch: switches a model whose library offers the choice; the number of places.

    Returns:
        As :func:`survey`, and ``switch``: whether there is something to switch; ``fused``: whether the model calls
        the operator already. Nothing is left that does not give
        the same loss and gradients of the whole model.
    """
    copied = copy.deepcopy(model)

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            loss(copied, batch)

    found: dict[str, Any] = {"switch": False, "refused": {}}
    if switch(copied):
        found["switch"] = _same(model, copied, loss, batch)
        if not found["switch"]:
            found["refused"][""] = "the library's own implementation gives other gradients on a batch"
            copied = copy.deepcopy(model)
    edits = survey(copied, run) | {"fused": attends(run)}
    refused = found["refused"] | edits.pop("refused")
    if edits["functions"] and not _same(model, RewriteAttention(tuple(edits["functions"]))(copied), loss, batch):
        refused[""] = "the rewritten model gives another loss or other gradients on a batch"
        edits |= {"functions": [], "found": 0, "causal": 0}
    return found | edits | {"refused": refused}


def _same(model: nn.Module, changed: nn.Module, loss: Callable[[Any, Any], Any], batch: Any) -> bool:
    """Whether the whole model computes the same, as far as rounding lets many layers."""
    expected = gradients(model, loss, batch)
    try:
        check(expected, gradients(changed, loss, batch), "loss and gradients", share=WHOLE)
    except Exception:  # a caller that reads what the library's own implementation leaves out
        return False
    return True
