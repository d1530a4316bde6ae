"""The training step of one process of several, and its messages alone, exposed in the step, and by size."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.distributed.group import alone
from autoopt.benchmark.losses import Loss
from autoopt.benchmark.training_step import TrainingStep
from autoopt.errors import WorkloadError
from autoopt.records.distributed import Communication, Spread

Weights = list[tuple[float, int]]
Way = Callable[[], contextlib.AbstractContextManager[None]]
"""Entered for some steps: how they are taken."""
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Torch begins with a small bucket, so that sending starts early."""
_LEAST, _TURN = 5, 3
"""Repeats at least, of which a median is taken, and steps of a turn after one that is not counted."""
_MESSAGES = 0.35
"""Of the time, for messages alone; the rest is for steps with and without them, alternately."""


class SharedStep(TrainingStep):
    """One optimizer step over this process's share of its micro-batches.

    The loss that it returns is weighted so that the mean over all processes is that of the whole batch.
    ``quiet``: of a step's micro-batches only the last one's gradients are sent.
    """

    def __init__(
        self,
        replicated: nn.Module,
        loss: Loss,
        optimizer: torch.optim.Optimizer,
        *,
        quiet: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(replicated, loss, optimizer, **more)
        self.quiet = quiet
        self.weights: Weights | None = None
        self._called = 0
        replicated.register_forward_hook(self._note_call)

    def train(self, batches: list[Any]) -> torch.Tensor:
        """One step; ``weights`` are those of these micro-batches, and forgotten with it."""
        if self.begin is not None:
            self.begin()
        weights, self.weights = self.weights, None
        if weights is None:  # batches that are held: each process has as many samples
            counts = [samples_of(batch) or 1 for batch in batches]
            factors = [count / sum(counts) for count in counts]
        else:
            whole = sum(samples for _, samples in weights)
            factors = [weight * samples / max(whole, 1) for weight, samples in weights]
        total: torch.Tensor | None = None
        for number, (batch, factor) in enumerate(zip(batches, factors, strict=True)):
            last = number == len(batches) - 1
            with contextlib.nullcontext() if last or not self.quiet else silent(self.model):
                if number:
                    self.clock.mark("backward")
                called = self._called
                loss = self.forward(self.model, batch)
                if self._unchecked:
                    self._check(loss)
                    if self._called == called:
                        raise WorkloadError(
                            "the loss does not call the model itself, model(...), so that gradients of several "
                            "processes would never be averaged",
                            hint="call model(inputs) in the loss, not a method of it",
                        )
                loss = loss if factor == 1.0 else loss * factor
                self.clock.mark("forward")
                self.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        self.clock.mark("backward")
        self.update()
        self.clock.mark("optimizer")
        assert total is not None
        return total

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


SIZES = tuple(4**power for power in range(6, 14))
"""Bytes, from 4 KiB to 64 MiB."""


def measure_communication(training: Any, batches: list[Any], seconds: float) -> Communication:
    """Measures within the processes; all of them call this. Weights stay as they are."""
    group, device = training.group, training.device
    sent = sum(p.numel() * p.element_size() for p in training.model.parameters() if p.requires_grad)
    dtype = torch.bfloat16 if training.setup.distributed.compression else torch.float32
    scale = 0.5 if training.setup.distributed.compression else 1.0
    own = getattr(training.model, "bucket_bytes_cap", BUCKET)  # where a script's own wrapping says so
    wanted = training.setup.distributed.bucket_megabytes or (own / 2**20 if own != BUCKET else None)
    buckets = buckets_of(int(sent * scale), wanted)

    def send(sizes: list[int]) -> Callable[[], None]:
        held = [torch.zeros(max(size // dtype.itemsize, 1), dtype=dtype, device=device.torch) for size in sizes]

        def all_reduce() -> None:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in held]
            for work in works:
                work.wait()
            device.synchronize()

        return all_reduce

    limit = seconds * _MESSAGES / (len(SIZES) + 1)  # each size is timed as far as the time goes
    by_size = {size: spread(_timed(training, send([size]), limit)).median for size in SIZES}
    alone = spread(_timed(training, send(buckets), limit))
    layers = len(synchronized(training.model))
    ways: dict[str, Way] = {"together": contextlib.nullcontext, "apart": training.apart}
    if layers:
        ways["own statistics"] = lambda: own_statistics(training.model)
    found = _interleaved(training, batches, ways, seconds * (1 - _MESSAGES))
    ranks = tuple(spread(values) for values in group.gather(found["apart"]))
    slowest = max(rank.median for rank in ranks)
    slowest_of = {  # seconds of each step as the slowest process has it
        name: spread([max(step) for step in zip(*group.gather(seconds), strict=True)])
        for name, seconds in found.items()
        if name != "apart"
    }
    whole, without = slowest_of["together"], slowest_of.get("own statistics")
    return Communication(
        processes=group.size,
        gradient_bytes=sent,
        alone=alone,
        apart=ranks,
        exposed=max(0.0, whole.median - slowest),
        by_size=by_size,
        straggler=straggler(ranks),
        synchronized_layers=layers,
        synchronized_seconds=whole.median - without.median if without is not None else None,
    )


def buckets_of(gradient_bytes: int, megabytes: float | None) -> list[int]:
    """Bytes of each bucket that is sent in a step."""
    usual = int((megabytes or BUCKET / 2**20) * 2**20)
    sizes: list[int] = []
    left = gradient_bytes
    while left > 0:
        sizes.append(min(left, usual if sizes or megabytes else min(usual, FIRST_BUCKET)))
        left -= sizes[-1]
    return sizes


def spread(values: list[float]) -> Spread:
    if len(values) < 2:
        return Spread(low=values[0], median=values[0], high=values[0], n=len(values))
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(low=low, median=middle, high=high, n=len(values))


def straggler(ranks: tuple[Spread, ...]) -> int | None:
    """The rank that is slower than all others by more than either varies; None where none stands out."""
    number = max(range(len(ranks)), key=lambda rank: ranks[rank].median)
    others = [rank for index, rank in enumerate(ranks) if index != number]
    return number if others and all(ranks[number].low > rank.high for rank in others) else None


def _timed(training: Any, call: Callable[[], None], seconds: float) -> list[float]:
    """Seconds of a call that all processes make together, as the slowest has them; the first does not count."""
    group, began = training.group, time.perf_counter()
    found: list[float] = []
    call()
    while len(found) < _LEAST or not group.agree(time.perf_counter() - began > seconds):
        group.wait()
        start = time.perf_counter()
        call()
        found.append(max(group.gather(time.perf_counter() - start)))
    return found


def _interleaved(training: Any, batches: list[Any], ways: Mapping[str, Way], seconds: float) -> dict[str, list[float]]:
    """Seconds of forward and backward in each of several ways, a few at a time, alternately."""
    group, began = training.group, time.perf_counter()
    found: dict[str, list[float]] = {name: [] for name in ways}

    def both(into: list[float]) -> None:
        for turn in range(_TURN + 1):
            group.wait()
            start = time.perf_counter()
            for batch in batches:
                training.backward(training.forward(batch))
            training.device.synchronize()
            if turn:  # the first wakes what slept
                into.append(time.perf_counter() - start)
            training.optimizer.zero_grad(set_to_none=True)

    while len(found["apart"]) < _LEAST or not group.agree(time.perf_counter() - began > seconds):
        for name, way in ways.items():
            with way():
                both(found[name])
    return found
