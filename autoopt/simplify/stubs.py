"""The compute side alone: forward, backward, optimizer, copies, evaluation, checkpoint, host."""

from __future__ import annotations

import io
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from autoopt.records import JsonDict
from autoopt.simplify.ceilings import PRODUCT
from autoopt.simplify.pace import Pace
from autoopt.simplify.parts import Parts, cores_available
from autoopt.simplify.survey import Timing
from autoopt.simplify.timing import Stub, interleaved, repeat

_EVALUATED = 3
_A_LOOK = 0.03
"""Seconds of steps with one number of threads before it is the other's turn."""


def compute(parts: Parts, batches: list[Any], box: float) -> JsonDict:
    """Forward, both directions, the optimizer on cached gradients, the whole step on cached batches, and what it adds.

    Args:
        batches: micro-batches of one optimizer step, on the device.
        box: seconds for all of it.
    """
    batch = batches[0]
    wait = parts.synchronize
    gradients: list[tuple[Any, Any]] = []

    def both() -> None:
        parts.backward(parts.forward(batch))

    def no_gradients() -> None:
        parts.optimizer.zero_grad(set_to_none=True)

    def cached_gradients() -> None:
        if not gradients:
            no_gradients()
            both()
            gradients.extend((p, p.grad) for p in parts.model.parameters() if p.grad is not None)
        for parameter, gradient in gradients:
            parameter.grad = gradient

    def update() -> None:
        if parts.scaler:  # unscaling what was unscaled is refused; its own part is small beside the update
            parts.optimizer.step()
        else:
            parts.optimizer_step()
        no_gradients()

    stubs = {
        "compute": Stub(lambda: parts.whole_step(batches), None, wait),
        "forward": Stub(lambda: parts.forward(batch), None, wait),
        "forward_backward": Stub(both, no_gradients, wait),
        "optimizer": Stub(update, cached_gradients, wait),
    }
    # differences turn by turn: a burst of the machine spoils one turn, not the difference of two medians
    derived = {
        "backward": lambda turn: turn[2] - turn[1],
        "host": lambda turn: turn[0] - parts.accumulation * turn[2] - turn[3],
    }
    timings = interleaved(list(stubs.values()), box, derived=tuple(derived.values()), pace=pace_of(parts))
    found: JsonDict = dict(zip((*stubs, *derived), timings, strict=True))
    if parts.cuda:
        found["issue"] = issue(parts, batches)
    return found


def pace_of(parts: Parts) -> Pace | None:
    """What reads the machine's pace beside stubs; None on a device, which has its own."""
    return Pace() if parts.device.type == "cpu" else None


def with_products(parts: Parts, measure: Callable[[], JsonDict], box: float) -> JsonDict:
    """Stubs with the square product before and after them, not between: small steps would find their caches cleared.

    Args:
        measure: the stubs.
        box: seconds for the products.
    """
    if parts.device.type != "cpu" or torch.get_num_threads() < cores_available():
        return measure()  # some threads alone reach no peak, and that is their own doing
    square = torch.ones(PRODUCT, PRODUCT)
    before = repeat(lambda: square @ square, box / 2, least=3)
    found = measure()
    after = repeat(lambda: square @ square, box / 2, least=3)
    return {**found, "product_seconds": (before.seconds + after.seconds) / 2}


def issue(parts: Parts, batches: list[Any], repeats: int = 5) -> Timing:
    """Seconds until a step is issued to an idle device: Python and launches, without waiting for results."""
    return repeat(lambda: parts.whole_step(batches), 2.0, before=parts.synchronize, least=repeats, most=repeats)


def ratio_of_batches(parts: Parts, batch: Any, other: Any, box: float) -> float:
    """Seconds of forward and backward of another micro-batch over those of this one, turn by turn."""

    def both(of: Any) -> Stub:
        def clear() -> None:
            parts.optimizer.zero_grad(set_to_none=True)

        return Stub(lambda: parts.backward(parts.forward(of)), clear, parts.synchronize)

    one, two = interleaved([both(batch), both(other)], box)
    return two.seconds / one.seconds


def by_threads(parts: Parts, batches: list[Any], measured: Timing, box: float) -> dict[int, float]:
    """Seconds of a whole step on cached batches by number of compute threads; the CPU only.

    The present number is measured again beside each other one, so that a burst does not pass for a speedup.
    """
    present = torch.get_num_threads()
    others = sorted({1, max(1, cores_available() // 2), cores_available()} - {present})
    found = {present: measured.seconds}
    for threads in others:
        ratios: list[float] = []
        end = time.perf_counter() + box / len(others)
        while len(ratios) < 2 or (time.perf_counter() < end and len(ratios) < 15):
            ratios.append(_with_threads(parts, batches, threads) / _with_threads(parts, batches, present))
        found[threads] = measured.seconds * statistics.median(ratios)
    torch.set_num_threads(present)
    return found


def _with_threads(parts: Parts, batches: list[Any], threads: int) -> float:
    """The median of a few steps with so many threads; the first wakes them, and counts only where it is a long one."""
    torch.set_num_threads(threads)
    walls: list[float] = []
    start = time.perf_counter()
    while not walls or (len(walls) < 16 and time.perf_counter() - start < _A_LOOK):
        mark = time.perf_counter()
        parts.whole_step(batches)
        walls.append(time.perf_counter() - mark)
    return statistics.median(walls[1:] or walls)


def copies(parts: Parts, batch: Any, box: float) -> JsonDict:
    """A host batch to the device: as the training does it, from pageable and from pinned memory; pinning itself."""
    found: JsonDict = {"copy_running": repeat(lambda: parts.to_device(batch), box * 0.4, wait=parts.synchronize)}
    if not parts.cuda:
        return found

    def move(source: Any, non_blocking: bool) -> None:
        tree_map(lambda x: x.to(parts.device, non_blocking=non_blocking) if isinstance(x, torch.Tensor) else x, source)

    def pin() -> Any:
        return tree_map(lambda x: x.pin_memory() if isinstance(x, torch.Tensor) else x, batch)

    pinned = pin()
    found["copy_pageable"] = repeat(lambda: move(batch, False), box * 0.2, wait=parts.synchronize)
    found["copy_pinned"] = repeat(lambda: move(pinned, True), box * 0.2, wait=parts.synchronize)
    found["pin"] = repeat(pin, box * 0.2)
    return found


def evaluation(parts: Parts, box: float) -> JsonDict:
    """One whole evaluation, scaled from a few of its batches."""
    if parts.evaluate is None or parts.valid_batches is None:
        return {}
    total = _length(parts.valid_batches)
    evaluate = parts.evaluate
    batches, first, following = _load(parts.valid_batches, _EVALUATED if total is None else min(_EVALUATED, total))
    if not batches:
        return {}
    with _evaluating(parts):
        timing = repeat(lambda: evaluate(batches), box, wait=parts.synchronize, least=2, most=5, pace=pace_of(parts))
    if total is None:
        total = sum(1 for _ in itertools.islice(parts.valid_batches, 10_000))
    loading, scale = first + (total - 1) * following, total / len(batches)
    return {
        "evaluate": Timing(
            seconds=timing.seconds * scale + loading,
            low=timing.low * scale + loading,
            high=timing.high * scale + loading,
            n=timing.n,
            pace=timing.pace,
            sensitivity=timing.sensitivity,
        ),
        "evaluated_batches": len(batches),
        "evaluation_batches": total,
    }


def _load(source: Any, count: int) -> tuple[list[Any], float, float]:
    """The first batches, seconds until the first of them, and seconds for each that follows."""
    start = time.perf_counter()
    stream = iter(source)
    batches = list(itertools.islice(stream, 1))
    first = time.perf_counter() - start
    batches += itertools.islice(stream, count - 1)
    rest = time.perf_counter() - start - first
    return batches, first, rest / max(len(batches) - 1, 1)


@contextmanager
def _evaluating(parts: Parts) -> Iterator[None]:
    parts.model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        parts.model.train()


def checkpoint(parts: Parts, box: float) -> JsonDict:
    """A checkpoint of model and optimizer, to memory and to a file that is on the disk."""
    state = {"model": parts.model.state_dict(), "optimizer": parts.optimizer.state_dict()}
    size = 0

    def to_memory() -> None:
        nonlocal size
        buffer = io.BytesIO()
        torch.save(state, buffer)
        size = buffer.tell()

    def to_disk() -> None:
        with tempfile.TemporaryFile() as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    pace = pace_of(parts)
    memory = repeat(to_memory, box / 2, least=2, most=5, pace=pace)
    return {
        "checkpoint_memory": memory,
        "checkpoint_disk": repeat(to_disk, box / 2, least=2, most=5, pace=pace),
        "checkpoint_bytes": size,
    }


def optimizer_bytes(parts: Parts) -> int:
    """Bytes that one optimizer step must move: parameters, gradients and states read, parameters and states written."""
    total = 0
    for group in parts.optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            size = parameter.numel() * parameter.element_size()
            states = sum(
                leaf.numel() * leaf.element_size()
                for leaf in tree_leaves(parts.optimizer.state.get(parameter, {}))
                if isinstance(leaf, torch.Tensor) and leaf.numel() == parameter.numel()
            )
            total += 3 * size + 2 * states
    return total


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None
