"""The training step of one process of several: the model's gradients are the mean over all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autoopt.benchmark.clock import StageClock
from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.distributed.group import Group, alone
from autoopt.benchmark.losses import Loss
from autoopt.benchmark.training_step import TrainingStep
from autoopt.errors import TrialFailed, WorkloadError

Weights = list[tuple[float, int]]


class SharedStep(TrainingStep):
    """One optimizer step over this process's share of its micro-batches.

    The loss that it returns is weighted so that the mean over all processes is that of the whole batch.

    Args:
        replicated: the model as ``replicate`` made it; its gradients are averaged over the processes.
        group: of the processes.
        quiet: of a step's micro-batches only the last one's gradients are sent.
        more: those of ``TrainingStep``.
    """

    def __init__(
        self,
        replicated: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        group: Group,
        *,
        quiet: bool = False,
        clock: StageClock | None = None,
        **more: Any,
    ) -> None:
        super().__init__(replicated, loss, optimizer, clock=clock, **more)
        self.group, self.quiet = group, quiet
        self.weights: Weights | None = None
        self._called = 0
        replicated.register_forward_hook(self._note_call)

    def train(self, batches: list[Any]) -> torch.Tensor:
        """One step; ``weights`` are those of these micro-batches, and forgotten with it."""
        if self.begin is not None:
            self.begin()
        factors = self._factors(batches)
        total: torch.Tensor | None = None
        for number, (batch, factor) in enumerate(zip(batches, factors, strict=True)):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last or not self.quiet else silent(self.model):
                if number:
                    self.clock.mark("backward")
                loss = self._weighted(batch, factor)
                self.clock.mark("forward")
                self.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        self.clock.mark("backward")
        self.update()
        self.clock.mark("optimizer")
        assert total is not None
        return total

    def _weighted(self, batch: Any, factor: float) -> torch.Tensor:
        called = self._called
        loss = self.forward(self.model, batch)
        if self._unchecked:
            self._check(loss)
            if self._called == called:
                raise WorkloadError(
                    "the loss does not call the model itself, model(...), so that gradients of several processes "
                    "would never be averaged",
                    hint="call model(inputs) in the loss, not a method of it",
                )
        return loss if factor == 1.0 else loss * factor

    def _factors(self, batches: list[Any]) -> list[float]:
        weights, self.weights = self.weights, None
        if weights is None:  # batches that are held: each process has as many samples
            counts = [samples_of(batch) or 1 for batch in batches]
            return [count / sum(counts) for count in counts]
        whole = sum(samples for _, samples in weights)
        return [weight * samples / max(whole, 1) for weight, samples in weights]

    def _note_call(self, *_: Any) -> None:
        self._called += 1


@contextlib.contextmanager
def silent(model: nn.Module) -> Iterator[None]:
    """Gradients stay with this process."""
    if hasattr(model, "no_sync"):
        with model.no_sync():  # type: ignore[operator]
            yield
        return
    model.set_requires_gradient_sync(False)  # type: ignore[operator]
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)  # type: ignore[operator]


def synchronized(model: nn.Module) -> list[Any]:
    """BatchNorm layers that see the samples of all processes: torch's, and others of its form (apex's)."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm) and hasattr(module, "process_group")]


@contextlib.contextmanager
def own_statistics(model: nn.Module) -> Iterator[None]:
    """BatchNorm over this process's samples, where it is over those of all: none waits for another in its forward."""
    found = synchronized(model)
    before = [module.process_group for module in found]
    for module in found:
        module.process_group = alone()
    try:
        yield
    finally:
        for module, group in zip(found, before, strict=True):
            module.process_group = group


@contextlib.contextmanager
def by_itself(step: SharedStep, training: Any) -> Iterator[None]:
    """Nothing is sent by the steps of this process's training, and no other is waited for.

    The weights are the caller's to put back.

    Raises:
        TrialFailed: the processes share parameters or states out, so that none can train by itself.
    """
    how = training.setup.distributed
    if how.sharded_optimizer or how.fully_sharded:
        raise TrialFailed("error", "a process that holds a share of the states cannot be measured by itself")
    together, step.model = step.model, training.model
    unchecked, step._unchecked = step._unchecked, 0
    try:
        with own_statistics(training.model):
            yield
    finally:
        step.model, step._unchecked = together, unchecked
        training.group.wait()
