"""What the stubs need of an assembled training, in one place."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from autoopt.setup import Setup


def cores_available() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class Parts:
    """An assembled training, taken apart.

    Args:
        model: on its device, in training mode.
        loss: ``loss(model, batch)``, a scalar tensor; autocast included.
        optimizer: made and ready.
        loader: the training loader.
        device: where the model is.
        setup: how it is trained.
        accumulation: micro-batches per optimizer step.
        move: a host batch to the device, the way the training does it.
        step: one whole optimizer step on a list of micro-batches on the device.
        scaler: the gradient scaler, or None.
        clip_grad_norm: or None.
        evaluate: ``evaluate(batches)`` on host batches, in eval mode without gradients; None without one.
        valid_batches: the validation loader; None without one.
        evaluate_every: optimizer steps between evaluations.
        schedule: what moves with each step and has a state; None without one.
        forget: called when all is put back, so that the training's clock forgets the stubs.
        user_objects: whose source is the user's, for advice: loss, model, dataset, evaluate.
    """

    model: nn.Module
    loss: Callable[[Any, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Any]
    device: torch.device
    setup: Setup = field(default_factory=Setup)
    accumulation: int = 1
    move: Callable[[Any], Any] | None = None
    step: Callable[[list[Any]], Any] | None = None
    scaler: Any = None
    clip_grad_norm: float | None = None
    evaluate: Callable[[Iterable[Any]], Any] | None = None
    valid_batches: Iterable[Any] | None = None
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    schedule: Any = None
    forget: Callable[[], None] | None = None
    user_objects: dict[str, Any] = field(default_factory=dict)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()

    def to_device(self, batch: Any) -> Any:
        if self.move:
            return self.move(batch)
        from torch.utils._pytree import tree_map

        return tree_map(lambda item: item.to(self.device) if isinstance(item, torch.Tensor) else item, batch)

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of one micro-batch, with its graph."""
        with self.autocast():
            return self.loss(self.model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        (self.scaler.scale(loss) if self.scaler else loss).backward()

    def optimizer_step(self) -> None:
        """Clipping, the optimizer and zeroing: what follows the last backward of a step."""
        if self.scaler:
            self.scaler.unscale_(self.optimizer)
        if self.clip_grad_norm:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip_grad_norm)
        if self.scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()

    def whole_step(self, batches: list[Any]) -> None:
        """One optimizer step on micro-batches that are on the device."""
        if self.step:
            self.step(batches)
            return
        for batch in batches:
            self.backward(self.forward(batch) / len(batches))
        self.optimizer_step()
        self.optimizer.zero_grad(set_to_none=True)
