"""One optimizer step: forward and backward over its micro-batches, unscale, clip, step, forget the gradients.

Exported scripts print the class, folded by what their plan needs (``export.text``). Short steps go the fast path."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import sub
from time import perf_counter
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.batch_iterator import BatchIterator
from autoopt.benchmark.clock import StageClock
from autoopt.benchmark.contents import added, samples_of
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.losses import Loss, LossRecorder, check_loss


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


class FastPath:
    """Trains to the end of an epoch in place of ``Training.next`` and ``Training.advance``.

    Args:
        training: what is trained; its clock has been started.
        enough: asked after each step.
        recorder: gets the losses.
    """

    def __init__(self, training: Any, enough: Enough, recorder: LossRecorder) -> None:
        self._training, self._enough, self._recorder = training, enough, recorder
        self._clock: StageClock = training.clock
        self._batches: BatchIterator = training.batch_iterator

    def available(self) -> bool:
        """Whether the next steps may go this way: each batch is a step's, is where it belongs, and has a known size."""
        batches = self._batches
        if not (self._training.fast and batches.single and batches.sizes_hold):
            return False
        batches.open()
        return batches.sizes is not None

    def train(self, done: int) -> tuple[int, bool]:
        """Trains to the end of the epoch, or until it is enough.

        Args:
            done: steps of the lap so far.

        Returns:
            The steps of the lap after it, and whether it is enough.
        """
        training, clock, enough = self._training, self._clock, self._enough
        step, schedule, deferred = training.one_step, training.schedule, training.deferred_cost
        scheduled, watching, began = not schedule.idle, deferred.watching, clock.began
        arrivals: list[float] = []
        ends: list[float] = []
        losses: list[Any] = []
        split = done if clock.fine else done + clock.until_fine
        over, further = False, 0
        try:
            for batch in self._batches.open():
                arrived = perf_counter()
                arrivals.append(arrived)
                if done == split:
                    clock.fine, clock.last = True, arrived
                    loss = training.compute([batch])
                    end = perf_counter()
                    split += self._split_done(arrived, end)
                    further = self._further_samples(batch, len(ends))
                else:
                    loss = step([batch])
                    if scheduled:
                        schedule.step()
                    end = perf_counter()
                ends.append(end)
                losses.append(loss.tolist())
                if watching:
                    deferred.note([batch])
                done += 1
                over = enough(done, end - began)
                if over or further:
                    break
            else:
                self._batches.ended(len(arrivals))
        finally:
            self._account(arrivals, ends, split - done, further)
            self._recorder.extend(losses)
        return done, over

    def _split_done(self, arrived: float, end: float) -> int:
        """A step that was split has ended; the steps to the next one that is split."""
        clock = self._clock
        clock.totals["other"] += end - clock.last
        clock.unsplit -= end - arrived  # where all steps of the epoch are added
        clock.fine = False
        return clock.distance()

    def _further_samples(self, batch: Any, further: int) -> int:
        """Samples of a batch, so many further on, over those that the loader reports; below 0 if some are left out."""
        sizes = self._batches.sizes
        assert sizes is not None
        told = sizes.of(self._batches.batch + further)
        return min((samples_of(batch) or told) - told, 0)

    def _account(self, arrivals: list[float], ends: list[float], left: int, further: int) -> None:
        """Books the steps of an epoch at once, in place of ``mark("data")`` and ``step_done`` for each.

        Args:
            arrivals: when the batch of each had come, by ``perf_counter``; one more where a step failed.
            ends: when each ended.
            left: steps before the next one that the clock splits.
            further: samples of the last batch beyond those that the loader reported.
        """
        training, batches, clock = self._training, self._batches, self._clock
        sizes, first = batches.sizes, batches.batch
        assert sizes is not None
        training.steps += len(ends)
        training.samples = added(training.samples, sizes.of_first(first + len(ends)) - sizes.of_first(first) + further)
        batches.batch += len(arrivals)
        if further:
            batches.size_mismatch()
        begins = [clock.step_began, *ends[:-1]]
        clock.totals["data"] += sum(map(sub, arrivals, begins))
        clock.unsplit += sum(map(sub, ends, arrivals))
        clock.steps += map(sub, ends, begins)
        clock.last = clock.step_began = ends[-1] if ends else clock.step_began
        clock.fine, clock.until_fine = left <= 0, left
        if clock.fine:
            clock.split_next()
