"""Steps tried next to the training: with another model or arithmetic, and counted by operator."""

from __future__ import annotations

import copy
import ctypes
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from math import inf
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autoopt.benchmark.cputime import memory
from autoopt.benchmark.flags import matmul_precision
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import next_to_training

SECONDS = 0.5
"""Of each of the two that are compared."""


class _Limit:
    """Of all that is tried in this process: a script's own thread tries what another one asks for."""

    until = inf


@contextmanager
def tried_within(seconds: float | None) -> Iterator[None]:
    """Changes that are asked for once these seconds are over are not tried; without limit where None."""
    _Limit.until = inf if seconds is None else time.perf_counter() + seconds
    try:
        yield
    finally:
        _Limit.until = inf


def without_graphs(model: nn.Module) -> None:
    """Takes the last step's graph from what modules keep of it, such as attention's probabilities: a copy has none."""
    for module in model.modules():
        kept = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
        vars(module).update({name: value.detach() for name, value in kept.items() if value.grad_fn is not None})


def ratio_with(
    training: LiveTraining,
    change: Callable[[nn.Module], nn.Module] | None = None,
    *,
    dtype: torch.dtype | None = None,
    under: torch.dtype | None = None,
    matmul: str | None = None,
    rebatch: Callable[[Any], Any] | None = None,
    unchecked: bool = False,
    seconds: float = SECONDS,
) -> float | None:
    """Seconds of forward and backward with a change over those without, on a real batch.

    The training itself is left as it is, but for the one micro-batch that is taken from its loader.

    Args:
        change: ``model -> model``, applied to a copy.
        dtype: of autocast with the change; that without it where None.
        under: of autocast on both sides; the training's own where None.
        matmul: precision of float32 matrix products (``torch.set_float32_matmul_precision``).
        rebatch: ``batch -> batch``, of the micro-batch on the device (``training.rebatched``).
        unchecked: without ``torch.autograd.detect_anomaly``, under which the other side is.
        seconds: for all of it; a few turns are made however long they take.

    Returns:
        The median over turns, 1 where nothing is changed; None where copies do not fit or are not trained by the loss,
        where the model is compiled, where either fails, or where the time for all that is tried is over.
    """
    device = training.device.torch
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory()[1]
    fits = 4 * sum(p.nbytes for p in training.model.parameters()) < free  # two copies of the model, with gradients
    if training.setup.compile is not None or time.perf_counter() > _Limit.until or not fits:
        return None
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            plain = copy.deepcopy(training.model)
            batch = training.next()[0]
            usual = _autocast(device, under) or training.autocast or nullcontext()
            once = partial(_once, training, plain, batch, usual, anomalies=unchecked)
            if change is None and dtype is None and matmul is None and rebatch is None and not unchecked:
                end = training.device.now() + seconds  # nothing to compare with
                once()
                while training.device.now() < end:
                    once()
                return 1.0
            changed = copy.deepcopy(training.model)
            changed = change(changed) if change is not None else changed
            another = rebatch(batch) if rebatch is not None else batch
            other = _autocast(device, dtype) or usual
            return _turns(
                training,
                once,
                lambda: _once(training, changed, another, other, matmul),
                seconds,
            )
    except Exception:  # whatever a user's model does not like about being copied or changed
        return None


def _autocast(device: torch.device, dtype: torch.dtype | None) -> Any:
    return None if dtype is None else torch.autocast(device.type, dtype=dtype)


def _once(
    training: LiveTraining,
    model: nn.Module,
    batch: Any,
    autocast: Any,
    matmul: str | None = None,
    anomalies: bool = False,
) -> float:
    model.zero_grad(set_to_none=True)
    training.device.synchronize()
    with matmul_precision(matmul), torch.autograd.set_detect_anomaly(anomalies):
        began = training.device.now()
        with autocast:
            loss = training.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        training.device.synchronize()
        passed = training.device.now() - began
    if all(parameter.grad is None for parameter in model.parameters()):
        raise ValueError("the loss did not go through the copy: it holds a model of its own")
    return passed


def _turns(training: LiveTraining, plain: Callable[[], float], changed: Callable[[], float], seconds: float) -> float:
    end = training.device.now() + seconds
    changed()  # what is set up on first use
    if training.device.now() < end:
        plain()  # a slow step has little to set up, and the training itself has run it
    ratios = [1 / plain() * changed()]
    if ratios[0] > 3.0:  # hopeless: it is not tried again
        return ratios[0]
    least = 3 if training.device.now() < end + seconds / 2 else 1  # one turn of a slow step shows as much
    while len(ratios) < least or (len(ratios) < 30 and training.device.now() < end):  # more show nothing new
        ratios.append(1 / plain() * changed())
    return statistics.median(ratios)


def freed_pages(training: LiveTraining) -> int | None:
    """Pages that a step is given anew where all free memory has gone back to the system: the most page faults it has.

    Which part of it goes back after a step differs from process to process of one program: glibc returns the end of its
    heap, and what lies there is a matter of chance.

    Returns:
        Of forward and backward; None on another device, where the C library has no ``malloc_trim``, or where they fail.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None or training.device.kind != "cpu" or training.setup.compile is not None:
        return None
    batches = training.next()

    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for batch in batches:
            training.backward(training.forward(batch))
        training.model.zero_grad(set_to_none=True)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    try:
        with next_to_training(training.model):
            faults()
            trim(0)
            return faults()
    except Exception:  # whatever a user's model does not like about another step
        return None


def count_flops(training: LiveTraining) -> int:
    """Operations of forward and backward of one step; weights, statistics and random numbers stay as they were.

    Matrix products, convolutions and attention count; what the user recomputes is counted as done. A
    compiled model is counted uncompiled: its fused kernels do the same arithmetic.
    """
    batches = training.next()
    eager, counting = torch.compiler.set_stance("force_eager"), FlopCounterMode(display=False)
    with next_to_training(training.model), eager, counting as counter:
        for batch in batches:
            training.forward(batch).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
