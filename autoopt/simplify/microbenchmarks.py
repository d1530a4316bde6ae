"""Microbenchmarks of the compute side: forward, backward, optimizer, host, copies, evaluation, checkpoint alone."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.live import LiveTraining
from autoopt.records import JsonDict
from autoopt.simplify.ceilings import PRODUCT
from autoopt.simplify.drift import ReferenceSpeed
from autoopt.simplify.stage_timings import Timing
from autoopt.simplify.timing import Microbenchmark, interleaved, repeat

_EVALUATED = 3
_ISSUED = 5
_TURN = 0.03
"""Seconds of steps with one number of threads before it is the other's turn."""


def compute(training: LiveTraining, batches: list[Any], time_limit: float) -> JsonDict:
    """Forward, both directions, the optimizer on cached gradients, the whole step on cached batches, and what it adds.

    Args:
        batches: micro-batches of one optimizer step, on the device.
        time_limit: seconds for all of it.
    """
    batch, wait, optimizer = batches[0], training.device.synchronize, training.optimizer
    gradients: list[tuple[Any, torch.Tensor]] = []

    def both() -> None:
        training.backward(training.forward(batch))

    def no_gradients() -> None:
        optimizer.zero_grad(set_to_none=True)

    def cached_gradients() -> None:
        if not gradients:
            no_gradients()
            both()  # cloned: those of a replayed graph lie in its own memory, which it overwrites
            gradients.extend((p, p.grad.clone()) for p in training.model.parameters() if p.grad is not None)
        for parameter, gradient in gradients:  # unscaling changes them in place, until nothing is left of them
            parameter.grad = gradient.clone() if training.scaler is not None else gradient

    stages = {
        "compute": Microbenchmark(lambda: training.whole_step(batches), None, wait),
        "forward": Microbenchmark(lambda: training.forward(batch), None, wait),
        "forward_backward": Microbenchmark(both, no_gradients, wait),
        "optimizer": Microbenchmark(training.update, cached_gradients, wait),
    }
    # differences turn by turn: a burst of the machine spoils one turn, not the difference of two medians
    derived = {
        "backward": lambda turn: turn[2] - turn[1],
        "host": lambda turn: turn[0] - training.lengths.accumulation * turn[2] - turn[3],
    }
    reference = reference_of(training)
    timings = interleaved(list(stages.values()), time_limit, derived=tuple(derived.values()), reference=reference)
    found: JsonDict = dict(zip((*stages, *derived), timings, strict=True))
    if training.device.kind == "cuda":

        def ready() -> None:
            cached_gradients()
            wait()

        found["issue"] = _issue(lambda: training.whole_step(batches), wait)
        found["issue_update"] = _issue(training.update, ready)
    return found


def reference_of(training: LiveTraining) -> ReferenceSpeed | None:
    """Reads the machine's speed beside a microbenchmark; None on a device, which has its own."""
    return ReferenceSpeed() if training.device.kind == "cpu" else None


def square_product(training: LiveTraining, time_limit: float) -> float | None:
    """Seconds of the square product of ``ceilings.PRODUCT`` rows; all cores of a CPU only: some reach no peak."""
    if training.device.kind != "cpu" or torch.get_num_threads() < usable_cores():
        return None
    square = torch.ones(PRODUCT, PRODUCT)
    return repeat(lambda: square @ square, time_limit, least=3).seconds


def _issue(call: Callable[[], Any], idle: Callable[[], Any]) -> Timing:
    """Seconds until work is issued to an idle device: Python and launches, without waiting for results."""
    return repeat(call, 2.0, before=idle, least=_ISSUED, most=_ISSUED)


def ratio_of_batches(training: LiveTraining, batch: Any, other: Any, time_limit: float) -> float:
    """Seconds of forward and backward of another micro-batch over those of this one, turn by turn."""

    def clear() -> None:
        training.optimizer.zero_grad(set_to_none=True)

    def both(of: Any) -> Microbenchmark:
        return Microbenchmark(lambda: training.backward(training.forward(of)), clear, training.device.synchronize)

    one, two = interleaved([both(batch), both(other)], time_limit)
    return two.seconds / one.seconds


def by_threads(training: LiveTraining, batches: list[Any], measured: Timing, time_limit: float) -> dict[int, float]:
    """Seconds of a whole step on cached batches by number of compute threads; the CPU only.

    The present number is measured again beside each other one, so that a burst does not pass for a speedup; twice,
    where a step is not longer than the time for it.
    """
    present = torch.get_num_threads()
    others = sorted({1, max(1, usable_cores() // 2), usable_cores()} - {present})
    found = {present: measured.seconds}
    for threads in others:
        ratios: list[float] = []
        fewest = 2 if measured.seconds < time_limit else 1
        end = time.perf_counter() + time_limit / len(others)
        while len(ratios) < fewest or (time.perf_counter() < end and len(ratios) < 15):
            ratios.append(_with_threads(training, batches, threads) / _with_threads(training, batches, present))
        found[threads] = measured.seconds * statistics.median(ratios)
    torch.set_num_threads(present)
    return found


def _with_threads(training: LiveTraining, batches: list[Any], threads: int) -> float:
    """The median of a few steps with so many threads; the first wakes them, and counts only where it is a long one."""
    torch.set_num_threads(threads)
    walls: list[float] = []
    start = time.perf_counter()
    while not walls or (len(walls) < 16 and time.perf_counter() - start < _TURN):
        mark = time.perf_counter()
        training.whole_step(batches)
        walls.append(time.perf_counter() - mark)
    return statistics.median(walls[1:] or walls)


def copies(training: LiveTraining, batch: Any, time_limit: float) -> JsonDict:
    """A host batch to the device, as the training moves it, and on CUDA the pinning of one."""
    wait = training.device.synchronize
    found: JsonDict = {"transfer": repeat(lambda: training.to_device(batch), time_limit * 0.6, wait=wait)}
    if training.device.kind == "cuda":

        def pin() -> Any:
            return tree_map(lambda x: x.pin_memory() if isinstance(x, torch.Tensor) else x, batch)

        found["pin"] = repeat(pin, time_limit * 0.4)
    return found


def evaluation(training: LiveTraining, time_limit: float) -> JsonDict:
    """One whole evaluation, scaled from a few of its batches."""
    if training.evaluation is None:
        return {}
    source = training.evaluation.batches
    total = _length(source)
    batches, first, following = _load(source, _EVALUATED if total is None else min(_EVALUATED, total))
    if not batches:
        return {}
    timing = repeat(
        lambda: training.evaluation.on(training.model, batches), time_limit, wait=training.device.synchronize,
        least=2, most=5, reference=reference_of(training),
    )  # fmt: skip
    if total is None:
        total = sum(1 for _ in itertools.islice(source, 10_000))
    loading, scale = first + (total - 1) * following, total / len(batches)
    scaled = {name: getattr(timing, name) * scale + loading for name in ("seconds", "low", "high")}
    more = {"n": timing.n, "reference": timing.reference, "sensitivity": timing.sensitivity}
    samples = sum(samples_of(batch) or 0 for batch in batches) * scale
    return {"evaluate": Timing(**scaled, **more), "evaluation_samples": samples or None}


def _load(source: Any, count: int) -> tuple[list[Any], float, float]:
    """The first batches, seconds until the first of them, and seconds for each that follows."""
    start = time.perf_counter()
    stream = iter(source)
    batches = list(itertools.islice(stream, 1))
    first = time.perf_counter() - start
    batches += itertools.islice(stream, count - 1)
    rest = time.perf_counter() - start - first
    return batches, first, rest / max(len(batches) - 1, 1)


def checkpoint(training: LiveTraining, time_limit: float) -> JsonDict:
    """A checkpoint of model and optimizer to a file that is on the disk."""
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}

    def to_disk() -> None:
        with tempfile.TemporaryFile() as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())

    return {"checkpoint": repeat(to_disk, time_limit, least=2, most=5, reference=reference_of(training))}


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes that one optimizer step must move: parameters, gradients and states read, parameters and states written."""
    total = 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            size = parameter.numel() * parameter.element_size()
            states = sum(
                leaf.numel() * leaf.element_size()
                for leaf in tree_leaves(optimizer.state.get(parameter, {}))
                if isinstance(leaf, torch.Tensor) and leaf.numel() == parameter.numel()
            )
            total += 3 * size + 2 * states
    return total


def _length(batches: Any) -> int | None:
    try:
        return len(batches)
    except TypeError:
        return None
