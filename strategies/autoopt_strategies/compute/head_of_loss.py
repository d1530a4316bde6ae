"""Finds the linear layer whose outputs are a cross-entropy's logits, and verifies that chunks give the same."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from autoopt_strategies.common import first_line
from autoopt_strategies.compute.deferred_head import ChunkedLoss, DeferHead
from autoopt_strategies.compute.rewriting.survey import same


def head_of_loss(live: Any, least_bytes: int = 0) -> dict[str, Any]:
    """``{"path": of the head, "rows", "words": of its logits, "labelled": rows whose label counts}``, or why none.

    A script's own loss cannot be computed by itself: whether chunks give the same is left to the training's probes.

    Args:
        least_bytes: logits in float32 that take less are not worth a check.

    Returns:
        ``{"reason": ...}`` where there is none.
    """
    training = live.training
    head = training.loss_head
    roots = training.roots
    named = roots[0].named_modules() if head is not None and len(roots) == 1 else ()
    path = next((name for name, each in named if type(each) is nn.Linear and each.weight is head.weight), None)
    if path is None:
        return {"reason": "no linear layer's outputs go into one cross-entropy"}
    rows, words = head.rows, head.weight.shape[0]
    if 4 * rows * words < least_bytes:
        return {"reason": f"the logits are small: {rows} rows of {words} words"}
    if training.takes_batches:
        try:
            reason = _different(training, path, max(1, rows // 3))
        except Exception as error:  # a model that does not like to be copied or examined is left alone
            reason = f"the loss cannot be traced: {first_line(error)}"
        if reason:
            return {"reason": reason}
    return {"path": path, "rows": rows, "words": words, "labelled": head.labelled}


def seconds_of_head(live: Any, found: dict[str, Any], changes: list[DeferHead]) -> list[float]:
    """Seconds of head and loss, forward and backward, on rows drawn at random: as they are, and with each change."""
    training = live.training
    head = copy.deepcopy(training.roots[0].get_submodule(found["path"])).train()
    hidden = torch.randn(found["rows"], head.in_features, device=head.weight.device, dtype=head.weight.dtype)
    labels = torch.full((found["rows"],), -100, device=hidden.device)
    labels[: found["labelled"]] = 0
    whole = _Scored(head, labels)
    models = [whole, *(replace(each, path="head")(copy.deepcopy(whole)) for each in changes)]

    def seconds(model: nn.Module) -> float:
        began = training.device.now()
        with torch.enable_grad(), training.autocast or nullcontext():
            loss = model(hidden.clone().requires_grad_())
        loss.backward()
        training.device.synchronize()
        return training.device.now() - began  # type: ignore[no-any-return]

    return [min(seconds(model) for _ in range(2)) for model in models]


class _Scored(nn.Module):
    def __init__(self, head: nn.Module, labels: torch.Tensor) -> None:
        super().__init__()
        self.head, self.labels = head, labels

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(hidden), self.labels)


def _different(training: Any, path: str, rows: int) -> str | None:
    """Why chunks are not used or give something else; None where they give the same loss and gradients."""
    model, batch = copy.deepcopy(training.model), training.next()[0]
    changed = DeferHead(path, rows, labelled=True)(copy.deepcopy(model))

    def loss(model: Any, batch: Any) -> Any:
        with training.autocast or nullcontext():
            return training.loss(model, batch)

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
