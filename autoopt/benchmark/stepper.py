"""One optimizer step: forward and backward over its micro-batches, unscale, clip, step."""

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


class Stepper:
    """``step(batches) -> loss``: what ``Setup.with_step`` wraps.

    The gradient is that of the mean over all samples of the micro-batches, so that a short last one
    counts for what it holds.

    Args:
        model, loss, optimizer: what is trained and how.
        autocast: entered around each forward pass; None where there is none.
        scaler: gradient scaler, or None.
        clip: largest norm of the gradient, or None.
        clock: told where each stage ends.
        new_graph: called before each micro-batch where CUDA graphs are replayed.
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
        new_graph: Callable[[], None] | None = None,
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.autocast, self.scaler, self.clip, self.clock = autocast or nullcontext(), scaler, clip, clock
        self.new_graph = new_graph
        self._bare = autocast is None
        self._unchecked = _CHECKED_STEPS

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
        """The same; the loss may still have its graph."""
        fine, mark = self.clock.fine, self.clock.mark
        if len(batches) == 1:
            loss = self.forward(batches[0])
            if fine:
                mark("forward")
            self.backward(loss)
        else:
            loss = self._accumulate(batches)
        if fine:
            mark("backward")
        self.update()
        if fine:
            mark("optimizer")
        return loss

    def flat(self) -> Callable[[list[Any]], torch.Tensor]:
        """:meth:`train` in one call where steps need no more than most do.

        Each call costs such a step a thousandth and more, and so does another place in which the last loss, and its
        graph, is let go of: here it is as in a loop by hand, once there is a new one.
        """
        if self.scaler is not None or self.clip is not None or self.new_graph is not None:
            return self.train
        model, optimizer, clock = self.model, self.optimizer, self.clock
        loss_of = self.loss if self._bare else self._cast
        loss: torch.Tensor | None = None

        def train(batches: list[Any]) -> torch.Tensor:
            nonlocal loss
            if self._unchecked or len(batches) > 1:
                loss = self.train(batches)
                return loss
            fine = clock.fine
            loss = loss_of(model, batches[0])
            if fine:
                clock.mark("forward")
            loss.backward()  # type: ignore[no-untyped-call]
            if fine:
                clock.mark("backward")
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if fine:
                clock.mark("optimizer")
            return loss

        return train

    def forward(self, batch: Any) -> torch.Tensor:
        if self.new_graph is not None:
            self.new_graph()
        loss = self.loss(self.model, batch) if self._bare else self._cast(self.model, batch)
        if self._unchecked:
            self._unchecked -= 1
            check_loss(loss)
        return loss

    def _cast(self, model: nn.Module, batch: Any) -> torch.Tensor:
        with self.autocast:
            return self.loss(model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        if self.scaler is None:
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def _accumulate(self, batches: list[Any]) -> torch.Tensor:
        counts = [samples_of(batch) or 1 for batch in batches]
        whole = sum(counts)
        total: torch.Tensor | None = None
        for batch, count in zip(batches, counts, strict=True):
            if total is not None:
                self.clock.mark("backward")
            part = self.forward(batch) * (count / whole)
            self.clock.mark("forward")
            self.backward(part)
            total = part.detach() if total is None else total + part.detach()
        assert total is not None
        return total

    def update(self) -> None:
        """Unscale, clip, step, forget the gradients."""
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
