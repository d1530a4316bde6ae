"""Overlap of loader workers and training steps, tried: what the interference model makes of its parts, held to life.

Contention measures two speeds while both sides work all the time. In a running step the training process also waits,
its compute threads fall asleep or spin beside the workers, and batches are handed over. So a few combinations that
strategies are likely to ask for are run as they would train, on the workload's own step, and the graph is held to them.
"""

from __future__ import annotations

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.training import Training
from autoopt.simplify.drift import TENSORS, ReferenceSpeed
from autoopt.simplify.inputs import Fetch
from autoopt.simplify.isolation import in_child
from autoopt.simplify.stage_timings import Overlap
from autoopt.simplify.timing import summary

_PREFETCH = 2
_LEAST, _MOST = 4, 200
"""Steps of a combination, once its queue has settled."""
_SEQUENCE = 64
"""Micro-batches whose indices are drawn beforehand, and read again and again."""


def measure_overlap(training: Training, time_limit: float, waits: bool = False) -> tuple[Overlap, ...]:
    """Seconds of a step fed by loader workers, by numbers of workers and compute threads; the CPU only.

    Neither the user's loader nor its samplers are touched: indices come from a forked child, samples from workers.
    Empty for datasets that cannot be asked for samples by index. The training must be restored afterwards.

    Args:
        time_limit: seconds for all of it; a combination that there is no time for is left out.
        waits: samples wait for storage rather than for a core, so that more workers than cores pay.
    """
    loader = training.loader.loader
    fetch = Fetch(loader)
    if training.device.kind != "cpu" or fetch.iterable or loader.batch_sampler is None:
        return ()
    indices = in_child(lambda: {"all": [fetch.indices() for _ in range(_SEQUENCE)]}, timeout=60.0)["all"]
    threads = torch.get_num_threads()
    wanted = [pair for pair in combinations(usable_cores(), threads, waits) if pair != (loader.num_workers, threads)]
    end = time.perf_counter() + time_limit
    found: list[Overlap] = []
    try:
        for number, (workers, count) in enumerate(wanted):
            share = (end - time.perf_counter()) / (len(wanted) - number)
            if share <= 0 and found:
                break
            torch.set_num_threads(count)
            found.append(_tried(training, indices, workers, count, max(share, 0.0)))
    finally:
        torch.set_num_threads(threads)
    return tuple(found)


def combinations(cores: int, threads: int, waits: bool) -> list[tuple[int, int]]:
    """(workers, compute threads) to try: half of the cores each, then workers on all of them, beside one thread or all.

    Where samples wait, twice as many workers as cores, beside one thread or all.
    """
    half = max(1, cores // 2)
    found = [(2 * cores, 1), (2 * cores, threads)] if waits else [(half, max(1, cores - half)), (cores, 1)]
    return list(dict.fromkeys([*found, (cores, threads)]))


def _tried(training: Training, indices: list[Any], workers: int, threads: int, time_limit: float) -> Overlap:
    loader = training.loader.loader
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # more workers than cores, and a fork beside threads, are what is tried
        source: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=_Sequence(indices),
            num_workers=workers,
            collate_fn=loader.collate_fn,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context="fork",
            prefetch_factor=_PREFETCH,
            generator=torch.Generator(),
        )
        stream = iter(source)
    try:
        return _timed(training, stream, workers, threads, time_limit)
    finally:
        del stream  # which ends its workers


class _Sequence:
    """The same lists of indices, again and again."""

    def __init__(self, indices: list[Any]) -> None:
        self._indices = indices

    def __iter__(self) -> Iterator[Any]:
        return itertools.cycle(self._indices)

    def __len__(self) -> int:
        return 1 << 30


def _timed(training: Training, stream: Iterator[Any], workers: int, threads: int, time_limit: float) -> Overlap:
    """Steps that are timed once the first batches, which were made before there was a step, are used up."""
    step = _step(training, stream)
    for _ in range(_PREFETCH * workers // training.accumulation + 1):
        step()
    reference = ReferenceSpeed(fresh=0.0)
    first, start = reference.now(), time.perf_counter()
    walls: list[float] = []
    while len(walls) < _LEAST or (len(walls) < _MOST and time.perf_counter() - start < time_limit):
        mark = time.perf_counter()
        for _ in range(workers):  # batches come in bunches, one of each worker
            step()
        walls.append((time.perf_counter() - mark) / workers)
        if len(walls) >= 2 and time.perf_counter() - start > 2 * time_limit:
            break
    reading = (first + reference.now()) / 2
    timing = summary(walls, readings=[reading] * len(walls), usual=TENSORS)
    return Overlap(workers=workers, threads=threads, timing=timing)


def _step(training: Training, stream: Iterator[Any]) -> Callable[[], None]:
    def step() -> None:
        batches = [training.to_device(next(stream)) for _ in range(training.accumulation)]
        training.whole_step(batches)

    return step
