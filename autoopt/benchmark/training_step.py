"""One optimizer step: forward and backward over its micro-batches, unscale, clip, step, forget the gradients."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.clock import StageClock
from autoopt.benchmark.losses import Loss, check_loss
from autoopt.benchmark.transfer import samples_of

_CHECKED_STEPS = 3


class TrainingStep:
    """The one training step, ``step(batches) -> loss``: what ``Setup.with_step`` wraps.

    The gradient is that of the mean over all samples of the micro-batches, so that a short last one
    counts for what it holds.

    Args:
        model, loss, optimizer: what is trained and how.
        autocast: entered around each forward pass; None where there is none.
        scaler: gradient scaler, or None.
        clip: largest norm of the gradient, or None.
        clock: told where each stage ends.
        begin: called before the first micro-batch of each step, where CUDA graphs are replayed.

    Attributes:
        forward: ``forward(model, batch) -> loss``; the loss itself where nothing surrounds it, since each frame
            costs a short step a thousandth and more.
        backward: ``backward(loss)``; scaled where there is a scaler.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        autocast: AbstractContextManager[Any] | None,
        scaler: torch.amp.GradScaler | None,
        clip: float | None,
        clock: StageClock,
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.autocast, self.scaler, self.clip, self.clock = autocast or nullcontext(), scaler, clip, clock
        self.begin = begin
        self.forward: Loss = loss if autocast is None else self._under_autocast
        self.backward: Callable[[torch.Tensor], None] = torch.Tensor.backward if scaler is None else self._scaled
        self._plain_update = scaler is None and clip is None
        self._unchecked = _CHECKED_STEPS
        self._latest: torch.Tensor | None = None

    def __call__(self, batches: list[Any]) -> torch.Tensor:
        """Trains one step.

        Args:
            batches: the micro-batches, on the device.

        Returns:
            The loss, detached: the mean over the samples of all micro-batches.

        Raises:
            WorkloadError: the loss is no scalar tensor that requires a gradient.
        """
        return self.train(batches).detach()

    def train(self, batches: list[Any]) -> torch.Tensor:
        """The same; the loss may still have its graph.

        The last loss, and its graph, is let go of once there is a new one, as in a loop by hand: where else that
        happens costs a short step a thousandth, too.
        """
        if self.begin is not None:
            self.begin()
        fine = self.clock.fine
        if len(batches) == 1:
            self._latest = loss = self.forward(self.model, batches[0])
            if self._unchecked:
                self._check(loss)
            if fine:
                self.clock.mark("forward")
            self.backward(loss)
        else:
            self._latest = loss = self._accumulate(batches)
        if fine:
            self.clock.mark("backward")
        if self._plain_update:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        else:
            self.update()
        if fine:
            self.clock.mark("optimizer")
        return loss

    def _accumulate(self, batches: list[Any]) -> torch.Tensor:
        counts = [samples_of(batch) or 1 for batch in batches]
        whole = sum(counts)
        total: torch.Tensor | None = None
        for batch, count in zip(batches, counts, strict=True):
            if total is not None:
                self.clock.mark("backward")
            loss = self.forward(self.model, batch)
            if self._unchecked:
                self._check(loss)
            part = loss * (count / whole)
            self.clock.mark("forward")
            self.backward(part)
            total = part.detach() if total is None else total + part.detach()
        assert total is not None
        return total

    def update(self) -> None:
        """What follows the last backward: unscale, clip, step, forget the gradients."""
        optimizer, scaler = self.optimizer, self.scaler
        if self.clip is not None:
            if scaler is not None:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], self.clip)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def _check(self, loss: Any) -> None:
        check_loss(loss)
        self._unchecked -= 1

    def _under_autocast(self, model: nn.Module, batch: Any) -> torch.Tensor:
        with self.autocast:
            return self.loss(model, batch)

    def _scaled(self, loss: torch.Tensor) -> None:
        assert self.scaler is not None
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
