"""Attention of a model: what can be rewritten, found on a real batch and checked on copies, and its back ends."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from types import CodeType
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from autoopt_strategies.compute.rewriting import attention_source
from autoopt_strategies.compute.rewriting.source import rewrite_functions, text_of
from autoopt_strategies.compute.rewriting.survey import Call, Sought, same, survey, users_frame, watched

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
}
"""As ``torch.backends.cuda.enable_..._sdp`` names them. Next to each stays the one written out, for what it refuses."""
SOFTMAX = (F.softmax, torch.softmax, torch.Tensor.softmax, torch.special.softmax)


def survey_attention(model: nn.Module, run: Callable[[], Any]) -> dict[str, Any]:
    """The methods whose attention can be edited, checked on the real input of one forward pass.

    Args:
        run: one forward pass of the model on a real batch.

    Returns:
        ``functions`` for :func:`rewrite_functions`, each with its ``file``; ``found`` (how many modules), ``causal``
        (how many of them without a mask of their own), and ``refused``: reasons by the modules' names.
    """
    seen = survey(model, attending(model, run), Sought(attention_source.statements, _variants))
    modules = seen.pop("modules").values()
    return {**seen, "found": len(modules), "causal": sum(wanted["mask"] == "causal" for wanted in modules)}


def _variants(module: nn.Module, method: Any, given: dict[str, Any]) -> Iterator[Mapping[str, str]]:
    held = {**vars(module), **dict(module.named_buffers(recurse=False))}
    causal = frozenset(name for name, each in held.items() if isinstance(each, torch.Tensor) and _is_causal(each))
    for scale, mask in attention_source.variants(text_of(method), method.__qualname__, causal):
        yield {"scale": scale, "mask": mask}


def attending(model: nn.Module, run: Callable[[], Any]) -> dict[str, tuple[CodeType, Call]]:
    """Modules during whose forward a softmax is computed, the function that computes it, and the module's call."""
    found: dict[str, tuple[CodeType, Call]] = {}
    running: list[tuple[str, type, Call]] = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            own = [each for each in running if each[1] is not nn.Softmax]
            if func in SOFTMAX and result.dim() >= 3 and own and own[-1][0] not in found:
                found[own[-1][0]] = users_frame().f_code, own[-1][2]
            return result

    def enter(path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        running.append((path, type(module), (args, dict(kwargs))))

    def leave(*_: Any) -> None:
        running.pop()

    with watched(model, enter, leave), Watch():
        run()
    return found


def _is_causal(mask: torch.Tensor) -> bool:
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
        As :func:`survey_attention`, and ``switch``: whether there is something to switch; ``fused``: whether the model
        calls the operator already. Nothing is left that does not give the same loss and gradients of the whole model.
    """
    copied = copy.deepcopy(model)

    def run() -> None:
        with torch.no_grad(), torch.random.fork_rng():
            loss(copied, batch)

    found: dict[str, Any] = {"switch": False, "refused": {}}
    if switch(copied):
        found["switch"] = same(model, copied, loss, batch)
        if not found["switch"]:
            found["refused"][""] = "the library's own implementation gives other gradients on a batch"
            copied = copy.deepcopy(model)
    edits = survey_attention(copied, run) | {"fused": attends(run)}
    refused = found["refused"] | edits.pop("refused")
    functions = edits["functions"]
    changed = rewrite_functions(copied, functions, attention_source.statements)
    if functions and not same(model, changed, loss, batch):
        refused[""] = "the rewritten model gives another loss or other gradients on a batch"
        edits |= {"functions": [], "found": 0, "causal": 0}
    return found | edits | {"refused": refused}


def through(model: nn.Module, name: str) -> nn.Module:
    """The model, in place, whose attention takes one back end: for a copy, whose process goes on with the others."""
    plain = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with sdpa_kernel([BACKENDS[name], SDPBackend.MATH]):
            return plain(*args, **kwargs)

    model.__dict__["forward"] = forward
    return model


def attends(run: Callable[[], Any]) -> bool:
    """Whether the operator runs by one of its fused back ends."""
    seen: list[str] = []

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "scaled_dot_product" in str(func):
                seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch(), torch.compiler.set_stance("force_eager"):  # type: ignore[no-untyped-call]
        run()
    return bool(seen)


def ratios(live: Any, changes: list[Callable[[Any], Any]]) -> dict[str, float]:
    """Forward and backward through each back end over those now, on copies.

    Args:
        changes: ``model -> model`` of what is changed with it.
    """

    def changed(copied: Any, name: str) -> Any:
        return through(reduce(lambda one, change: change(one), changes, copied), name)

    found = {name: live.ratio_with(partial(changed, name=name)) for name in BACKENDS}
    return {name: ratio for name, ratio in found.items() if ratio is not None}
