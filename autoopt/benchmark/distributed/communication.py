"""Communication of processes that train together: seconds of messages alone, exposed in the step, and by size."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from autoopt.benchmark.distributed.step import own_statistics, synchronized
from autoopt.records.distributed import Communication, Spread

SIZES = tuple(4**power for power in range(6, 14))
"""Bytes, from 4 KiB to 64 MiB; each is timed as far as the time goes."""
Way = Callable[[], contextlib.AbstractContextManager[None]]
"""Entered for some steps: how they are taken."""
FIRST_BUCKET, BUCKET = 2**20, 25 * 2**20
"""Torch begins with a small bucket, so that sending starts early."""
_LEAST, _TURN = 5, 3
_MESSAGES = 0.35
"""Of the time, for messages alone; the rest is for steps with and without them, in turns."""


def measure_communication(training: Any, batches: list[Any], seconds: float) -> Communication:
    """Measures within the processes; all of them call this. Weights stay as they are.

    Args:
        training: replicated over the processes.
        batches: micro-batches of one step, held, on the device.
        seconds: for all of it.
    """
    group, device = training.group, training.device
    sent = sum(p.numel() * p.element_size() for p in training.model.parameters() if p.requires_grad)
    dtype = torch.bfloat16 if training.setup.distributed.compression else torch.float32
    scale = 0.5 if training.setup.distributed.compression else 1.0
    buckets = buckets_of(int(sent * scale), training.setup.distributed.bucket_megabytes or own_buckets(training.model))

    def send(sizes: list[int]) -> Callable[[], None]:
        held = [torch.zeros(max(size // dtype.itemsize, 1), dtype=dtype, device=device.torch) for size in sizes]

        def all_reduce() -> None:
            works = [dist.all_reduce(tensor, async_op=True) for tensor in held]
            for work in works:
                work.wait()
            device.synchronize()

        return all_reduce

    limit = seconds * _MESSAGES / (len(SIZES) + 1)
    by_size = {size: spread(_timed(training, send([size]), limit)).median for size in SIZES}
    alone = spread(_timed(training, send(buckets), limit))
    layers = len(synchronized(training.model))
    ways: dict[str, Way] = {"together": contextlib.nullcontext, "apart": training.apart}
    if layers:
        ways["own statistics"] = lambda: own_statistics(training.model)
    found = _in_turns(training, batches, ways, seconds * (1 - _MESSAGES))
    ranks = tuple(spread(values) for values in group.gather(found["apart"]))
    slowest = max(rank.median for rank in ranks)
    whole = _of_slowest(training, found["together"])
    without = _of_slowest(training, found["own statistics"]) if layers else None
    return Communication(
        processes=group.size,
        gradient_bytes=sent,
        alone=alone,
        together=whole,
        apart=ranks,
        exposed=max(0.0, whole.median - slowest),
        by_size=by_size,
        straggler=straggler(ranks),
        synchronized_layers=layers,
        own_statistics=without,
        synchronized_seconds=whole.median - without.median if without is not None else None,
    )


def _of_slowest(training: Any, seconds: list[float]) -> Spread:
    """Seconds of each step as the slowest process has it."""
    return spread([max(step) for step in zip(*training.group.gather(seconds), strict=True)])


def own_buckets(model: Any) -> float | None:
    """Megabytes of a bucket, where a script's own wrapping says so; None where it is torch's own choice."""
    size = getattr(model, "bucket_bytes_cap", BUCKET)
    return size / 2**20 if size != BUCKET else None


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
    """Quartiles of repeats."""
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


def _in_turns(training: Any, batches: list[Any], ways: Mapping[str, Way], seconds: float) -> dict[str, list[float]]:
    """Seconds of forward and backward in each of several ways, in turns of a few."""
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
