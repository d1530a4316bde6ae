"""Seconds of forward and backward with another model or arithmetic: tried on copies, turn by turn."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import inf
from typing import Any

import psutil
import torch
from torch import nn

from autoopt.benchmark.flags import matmul_precision
from autoopt.benchmark.live import LiveTraining

SECONDS = 0.5
_LEAST, _MOST = 3, 30
_HOPELESS = 3.0
"""So many times slower, and it is not tried again."""
_ROOM = 4
"""Two copies of the model with gradients must fit into what memory is free."""


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


def ratio_with(
    training: LiveTraining,
    change: Callable[[nn.Module], nn.Module] | None = None,
    *,
    dtype: torch.dtype | None = None,
    matmul: str | None = None,
    rebatch: Callable[[Any], Any] | None = None,
    seconds: float = SECONDS,
) -> float | None:
    """Seconds of forward and backward with a change over those without, on a real batch.

    The training itself is left as it is, but for the one micro-batch that is taken from its loader.

    Args:
        change: ``model -> model``, applied to a copy.
        dtype: of autocast; the training's own where None.
        matmul: precision of float32 matrix products (``torch.set_float32_matmul_precision``).
        rebatch: ``batch -> batch``, of the micro-batch on the device.
        seconds: for all of it; a few turns are made however long they take.

    Returns:
        The median over turns, 1 where nothing is changed; None where copies do not fit or are not trained by the loss,
        where the model is compiled, where either fails, or where the time for all that is tried is over; and with
        ``rebatch`` where the training takes no batches but its own.
    """
    if rebatch is not None and not training.takes_batches:
        return None
    if training.setup.compile is not None or time.perf_counter() > _Limit.until or not _fits(training):
        return None
    devices = [training.device.torch] if training.device.torch.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=devices):
            plain = copy.deepcopy(training.model)
            batch = training.next()[0]
            usual = training.autocast or nullcontext()
            if change is None and dtype is None and matmul is None and rebatch is None:
                return _unchanged(training, lambda: _once(training, plain, batch, usual, None), seconds)
            changed = copy.deepcopy(training.model)
            changed = change(changed) if change is not None else changed
            another = rebatch(batch) if rebatch is not None else batch
            other = torch.autocast(training.device.torch.type, dtype=dtype) if dtype is not None else usual
            return _turns(
                training,
                lambda: _once(training, plain, batch, usual, None),
                lambda: _once(training, changed, another, other, matmul),
                seconds,
            )
    except Exception:  # whatever a user's model does not like about being copied or changed
        return None


def _fits(training: LiveTraining) -> bool:
    size = sum(p.numel() * p.element_size() for p in training.model.parameters())
    if training.device.torch.type == "cuda":
        free = torch.cuda.mem_get_info(training.device.torch)[0]
    else:
        free = psutil.virtual_memory().available
    return _ROOM * size < free


class _NotTrainedError(Exception):
    """The loss did not go through the copy: it holds a model of its own."""


def _once(training: LiveTraining, model: nn.Module, batch: Any, autocast: Any, matmul: str | None) -> float:
    """Seconds of one forward and backward."""
    model.zero_grad(set_to_none=True)
    training.device.synchronize()
    with matmul_precision(matmul):
        began = training.device.now()
        with autocast:
            loss = training.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        training.device.synchronize()
        passed = training.device.now() - began
    if all(parameter.grad is None for parameter in model.parameters()):
        raise _NotTrainedError
    return passed


def _unchanged(training: LiveTraining, plain: Callable[[], float], seconds: float) -> float:
    """Passes for these seconds, one at least, with nothing to be held against: what is asked of them is beside them."""
    end = training.device.now() + seconds
    plain()
    while training.device.now() < end:
        plain()
    return 1.0


def _turns(training: LiveTraining, plain: Callable[[], float], changed: Callable[[], float], seconds: float) -> float:
    end = training.device.now() + seconds
    changed()  # what is set up on first use
    if training.device.now() < end:
        plain()  # a slow step has little to set up, and the training itself has run it
    ratios = [1 / plain() * changed()]
    if ratios[0] > _HOPELESS:
        return ratios[0]
    least = _LEAST if training.device.now() < end + seconds / 2 else 1  # one turn of a slow step tells as much
    while len(ratios) < least or (len(ratios) < _MOST and training.device.now() < end):
        ratios.append(1 / plain() * changed())
    return statistics.median(ratios)
