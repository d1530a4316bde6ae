"""What cores are worth to this workload: its own preparation beside its own training step, both measured."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch

from autoopt.records import Beside
from autoopt.simplify.contention import Busy, observe
from autoopt.simplify.inputs import Fetch
from autoopt.simplify.parts import Parts, cores_available

_ROUNDS = 3
_LEAST = 0.02
_WINDOW = 0.05


def preparation_beside_steps(parts: Parts, batches: list[Any], box: float) -> tuple[Beside, ...]:
    """Speeds of workers that prepare samples and of the training step, while they compete, over their speeds alone.

    Args:
        batches: micro-batches of one step, on the device.
        box: seconds for all of it; each window holds a step at least.
    """
    cores, threads = cores_available(), torch.get_num_threads()
    wanted = combinations(cores, threads) if parts.device.type == "cpu" else [(0, cores)]
    window = max(box / (_ROUNDS * (2 * len(wanted) + 1)), _WINDOW)
    context = multiprocessing.get_context("fork")
    workers = [Busy(context, _preparing(parts)) for _ in range(max(count for _, count in wanted))]
    try:
        return _measure(workers, lambda: parts.whole_step(batches), wanted, window, threads)
    finally:
        torch.set_num_threads(threads)
        for worker in workers:
            worker.end()


def combinations(cores: int, threads: int) -> list[tuple[int, int]]:
    """(compute threads, workers) to measure: workers alone, cores just filled, and more wanted than there are."""
    half = max(1, cores // 2)
    found = [(0, cores), (half, cores - half), (threads, cores), (threads, 1), (1, cores), (1, cores - 1)]
    return list(dict.fromkeys(pair for pair in found if pair[1] > 0))


def _preparing(parts: Parts) -> Callable[[], int]:
    """What a worker does: samples one by one, and every micro-batch collated."""
    fetch = Fetch(parts.loader)
    pending: list[Any] = []
    made: list[Any] = []
    many = hasattr(fetch.dataset, "__getitems__")

    def work() -> int:
        if many or fetch.iterable:
            samples = fetch.samples(fetch.indices(), fetch.size)
            parts.loader.collate_fn(samples)
            return fetch.size
        if not pending:
            pending.extend(fetch.indices())
        made.append(fetch.dataset[pending.pop()])
        if not pending:
            parts.loader.collate_fn(made)
            made.clear()
        return 1

    return work


def _measure(
    workers: list[Busy], step: Callable[[], Any], wanted: list[tuple[int, int]], window: float, threads: int
) -> tuple[Beside, ...]:
    prepared: dict[tuple[int, int], list[float]] = defaultdict(list)
    stepped: dict[tuple[int, int], list[float]] = defaultdict(list)
    observe(workers, lambda: time.sleep(window))  # first samples are colder than those that follow
    for _ in range(_ROUNDS):
        alone = observe(workers[:1], lambda: time.sleep(window)).per_second
        if alone <= 0:
            continue
        rates: dict[int, float] = {}
        for team, count in wanted:
            if team and team not in rates:
                torch.set_num_threads(team)
                step()
                rates[team] = _rate(step, window)
            seen: list[float] = []
            if team:
                torch.set_num_threads(team)
                together = observe(workers[:count], lambda: seen.append(_rate(step, window)))  # noqa: B023
                stepped[team, count].append(seen[0] / rates[team])
            else:
                together = observe(workers[:count], lambda: time.sleep(window))
            prepared[team, count].append(together.per_second / alone)
    torch.set_num_threads(threads)
    return tuple(
        Beside(
            threads=team,
            workers=count,
            prepare=_speed(prepared[team, count]),
            step=_speed(stepped[team, count]) if team else None,
        )
        for team, count in wanted
        if prepared[team, count]
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
