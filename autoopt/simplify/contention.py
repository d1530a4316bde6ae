"""Contention for the cores, measured: the workload's own preparation beside its own training step."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from autoopt.benchmark.environment import usable_cores
from autoopt.benchmark.training import Training
from autoopt.records import Contention
from autoopt.simplify.inputs import Fetch

_ROUNDS = 4
_DECISIVE = 3
"""Combinations that are measured however long a step takes."""
_LEAST = 0.02
_WINDOW, _LONGEST = 0.05, 0.15
_COUNTED = 10


def measure_contention(
    training: Training, batches: list[Any], time_limit: float, sample_seconds: float = 0.0
) -> tuple[Contention, ...]:
    """Speeds of workers that prepare samples and of the training step, while they compete, over their speeds alone.

    Args:
        batches: micro-batches of one step, on the device.
        time_limit: seconds for all of it; each window holds a step at least.
        sample_seconds: of one sample; a window is long enough to count several.
    """
    cores, threads = usable_cores(), torch.get_num_threads()
    wanted = combinations(cores, threads) if training.device.kind == "cpu" else [(0, cores)]
    window = max(time_limit / (_ROUNDS * 3 * len(wanted)), _WINDOW, min(_COUNTED * sample_seconds, _LONGEST))
    work = _preparing(training.loader.loader)
    workers = [ForkedWorker(work) for _ in range(max(count for _, count in wanted))]
    try:
        return _measure(workers, lambda: training.whole_step(batches), wanted, window, time_limit)
    finally:
        torch.set_num_threads(threads)
        for worker in workers:
            worker.end()


def combinations(cores: int, threads: int) -> list[tuple[int, int]]:
    """(compute threads, workers) to measure, what decides most first: cores just filled, more wanted than there are."""
    half = max(1, cores // 2)
    found = [(half, cores - half), (threads, cores), (1, cores), (0, cores), (threads, 1), (1, cores - 1)]
    return list(dict.fromkeys(pair for pair in found if pair[1] > 0))


def _preparing(loader: DataLoader[Any]) -> Callable[[], int]:
    """The work of one worker: samples one by one, and every micro-batch collated."""
    fetch = Fetch(loader)
    pending: list[Any] = []
    made: list[Any] = []
    many = hasattr(fetch.dataset, "__getitems__")

    def work() -> int:
        if many or fetch.iterable:
            samples = fetch.samples(fetch.indices(), fetch.size)
            loader.collate_fn(samples)
            return fetch.size
        if not pending:
            pending.extend(fetch.indices())
        made.append(fetch.dataset[pending.pop()])
        if not pending:
            loader.collate_fn(made)
            made.clear()
        return 1

    return work


def _measure(
    workers: list[ForkedWorker], step: Callable[[], Any], wanted: list[tuple[int, int]], window: float, limit: float
) -> tuple[Contention, ...]:
    """Alone and together turn by turn: a core's speed shifts within tenths of a second, and their ratio does not."""
    prepared: dict[tuple[int, int], list[float]] = defaultdict(list)
    stepped: dict[tuple[int, int], list[float]] = defaultdict(list)
    start = time.perf_counter()
    rate_beside(workers, lambda: time.sleep(window))  # first samples are colder than those that follow
    for number in range(_ROUNDS):
        if number and time.perf_counter() - start > limit:
            break
        for threads, count in wanted[:: -1 if number % 2 else 1]:
            if len(prepared) >= _DECISIVE and time.perf_counter() - start > 2 * limit:
                break
            alone = rate_beside(workers[:1], lambda: time.sleep(window))
            if alone <= 0:
                continue
            if not threads:
                together = rate_beside(workers[:count], lambda: time.sleep(window))
            else:
                torch.set_num_threads(threads)
                step()
                before = _rate(step, window)
                seen: list[float] = []
                together = rate_beside(workers[:count], lambda: seen.append(_rate(step, window)))  # noqa: B023
                stepped[threads, count].append(seen[0] / before)
            prepared[threads, count].append(together / alone)
    return tuple(
        Contention(
            threads=threads,
            workers=count,
            prepare=_speed(prepared[threads, count]),
            step=_speed(stepped[threads, count]) if threads else None,
        )
        for threads, count in wanted
        if prepared[threads, count]
    )


def _speed(ratios: list[float]) -> float:
    return min(1.0, max(statistics.median(ratios), _LEAST))


def _rate(step: Callable[[], Any], seconds: float) -> float:
    """Steps per second."""
    count, start = 0, time.perf_counter()
    while True:
        step()
        count += 1
        passed = time.perf_counter() - start
        if passed >= seconds:
            return count / passed


class ForkedWorker:
    """A forked process that works while its gate is open.

    Args:
        work: does a little and says how much.
    """

    def __init__(self, work: Callable[[], int]) -> None:
        context = multiprocessing.get_context("fork")
        self.counter: Any = context.Value("Q", 0, lock=False)
        self.gate = context.Event()
        arguments = (work, self.counter, self.gate, os.getpid())
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, as a DataLoader does it
            self.process.start()

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def rate_beside(workers: list[ForkedWorker], meanwhile: Callable[[], Any]) -> float:
    """Work of one worker per second while something else ran; none of them works before or after."""
    for worker in workers:
        worker.gate.set()
    count, start = _total(workers), time.perf_counter()
    meanwhile()
    wall = time.perf_counter() - start
    counted = _total(workers) - count
    for worker in workers:
        worker.gate.clear()
    return counted / wall / len(workers)


def _total(workers: list[ForkedWorker]) -> int:
    return sum(worker.counter.value for worker in workers)


def _work(work: Callable[[], int], counter: Any, gate: Any, parent: int) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork; a loader's worker does the same
    while os.getppid() == parent:
        gate.wait(1.0)
        while gate.is_set():
            try:
                counter.value += work()
            except Exception:  # a dataset of the user's: its errors are told where samples are measured alone
                return
