"""Finds the linear layer whose outputs are a cross-entropy's logits, and verifies that chunks give the same."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from autoopt_strategies.common import first_line
from autoopt_strategies.compute.deferred_head import ChunkedLoss, DeferHead
from autoopt_strategies.compute.rewriting.survey import same, watched


class _Losses(TorchFunctionMode):
    """Notes the inputs of ``cross_entropy``."""

    def __init__(self) -> None:
        self.inputs: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.cross_entropy:
            self.inputs.append(args[0] if args else kwargs["input"])
        return func(*args, **kwargs)


def head_of_loss(live: Any, least_bytes: int = 0) -> dict[str, Any]:
    """``{"path": of the head, "rows", "words": of its logits}``, or ``{"reason": why there is none}``.

    Args:
        least_bytes: logits in float32 that take less are not worth a check.
    """
    batch = live.training.next()[0]
    try:
        model = copy.deepcopy(live.training.model)
        path, logits = _found(live, model, batch)
        if path is None or logits is None:
            return {"reason": "no linear layer's outputs go into one cross-entropy"}
        rows, words = logits.numel() // logits.shape[-1], logits.shape[-1]
        if 4 * rows * words < least_bytes:
            return {"reason": f"the logits are small: {rows} rows of {words} words"}
        reason = _different(live, model, path, max(1, rows // 3), batch)
    except Exception as error:  # a model that does not like to be copied or examined is left alone
        return {"reason": f"the loss cannot be traced: {first_line(error)}"}
    return {"reason": reason} if reason else {"path": path, "rows": rows, "words": words}


def _found(live: Any, model: nn.Module, batch: Any) -> tuple[str | None, torch.Tensor | None]:
    outputs: dict[str, torch.Tensor] = {}
    seen = _Losses()

    def note(path: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if type(module) is nn.Linear:
            outputs[path] = output

    with torch.random.fork_rng(), watched(model, after=note), seen:
        _loss(live)(model, batch)
    if len(seen.inputs) != 1 or seen.inputs[0].ndim < 2:
        return None, None
    words = seen.inputs[0].shape[1]  # where cross_entropy has the classes
    for name, out in reversed(outputs.items()):
        if out.shape[-1] == words and out.ndim > 1:
            return name, out
    return None, None


def _loss(live: Any) -> Callable[[Any, Any], Any]:
    """The loss under the autocast that the training has."""

    def loss(model: Any, batch: Any) -> Any:
        with live.training.autocast or nullcontext():
            return live.training.loss(model, batch)

    return loss


def _different(live: Any, model: nn.Module, path: str, rows: int, batch: Any) -> str | None:
    """Why chunks are not used or give something else; None where they give the same loss and gradients."""
    changed, loss = DeferHead(path, rows)(copy.deepcopy(model)), _loss(live)
    with torch.random.fork_rng():
        if not _in_chunks(loss(copy.deepcopy(changed), batch)):
            return "the logits are used in a way that needs all of them at once"
    return None if same(model, changed, loss, batch) else "in chunks the loss or its gradients are others"


def _in_chunks(loss: torch.Tensor) -> bool:
    """Whether a loss was made by chunks: it is, or follows from, what they give."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == f"{ChunkedLoss.__name__}Backward":
            return True
        seen.add(node)
        waiting += [before for before, _ in node.next_functions]
    return False
