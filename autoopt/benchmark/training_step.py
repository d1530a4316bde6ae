"""One optimizer step: forward and backward over its micro-batches, unscale, clip, step, forget the gradients.

Exported scripts print the class, folded by what their plan needs (``export.text``)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.clock import StageClock
from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.losses import Loss, check_loss


class TrainingStep:
    """``step(batches) -> loss``: one optimizer step over its micro-batches, which are on the device.

    The gradient is that of the mean over all samples of the micro-batches, so that a short last one
    counts for what it holds.

    Args:
        model, loss, optimizer: what is trained and how.
        autocast: entered around each forward pass; None where there is none.
        scaler: gradient scaler, or None.
        clip: largest norm of the gradient, or None.
        begin: called before the first micro-batch of each step, where CUDA graphs are replayed.
        clock: notified where each stage ends.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        autocast: AbstractContextManager[Any] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        clip: float | None = None,
        begin: Callable[[], None] | None = None,
        clock: StageClock | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.autocast = autocast
        self.scaler = scaler
        self.clip = clip
        self.begin = begin
        self.clock = clock or StageClock()
        # Called as they are where nothing surrounds them: each frame costs a short step a thousandth and more.
        self.forward: Loss = loss if autocast is None else self._under_autocast
        self.backward: Callable[[torch.Tensor], None] = torch.Tensor.backward if scaler is None else self._scaled
        self._plain_update = scaler is None and clip is None
        self._unchecked = 3  # first steps, whose losses are examined
        self._latest: torch.Tensor | None = None

    def __call__(self, batches: list[Any]) -> torch.Tensor:
        """Trains one step.

        Args:
            batches: the micro-batches, on the device.

        Returns:
            The loss, detached: the mean over the samples of all micro-batches.
        """
        return self.train(batches).detach()

    def train(self, batches: list[Any]) -> torch.Tensor:
        """The same; the loss may still have its graph."""
        # The last loss is let go of, with its graph, once there is a new one, as in a hand-written loop: otherwise a
        # short step takes a thousandth longer.
        if self.begin is not None:
            self.begin()
        fine = self.clock.fine
        single = len(batches) == 1
        if single:
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
        """The update that follows the last backward: unscale, clip, step, forget the gradients."""
        if self.clip is not None:
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], self.clip)
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _check(self, loss: Any) -> None:
        check_loss(loss)
        self._unchecked -= 1

    def _under_autocast(self, model: nn.Module, batch: Any) -> torch.Tensor:
        assert self.autocast is not None
        with self.autocast:
            return self.loss(model, batch)

    def _scaled(self, loss: torch.Tensor) -> None:
        assert self.scaler is not None
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
