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

_ROUNDS, _LEAST_ROUNDS = 4, 2
_LEAST = 0.02
_WINDOW, _LONGEST = 0.05, 0.15
_COUNTED = 10


def preparation_beside_steps(
    parts: Parts, batches: list[Any], box: float, sample_seconds: float = 0.0
) -> tuple[Beside, ...]:
    """Speeds of workers that prepare samples and of the training step, while they compete, over their speeds alone.

    Args:
        batches: micro-batches of one step, on the device.
        box: seconds for all of it; each window holds a step at least.
        sample_seconds: of one sample; a window is long enough to count several.
    """
    cores, threads = cores_available(), torch.get_num_threads()
    wanted = combinations(cores, threads) if parts.device.type == "cpu" else [(0, cores)]
    window = max(box / (_ROUNDS * 3 * len(wanted)), _WINDOW, min(_COUNTED * sample_seconds, _LONGEST))
    context = multiprocessing.get_context("fork")
    workers = [Busy(context, _preparing(parts)) for _ in range(max(count for _, count in wanted))]
    try:
        return _measure(workers, lambda: parts.whole_step(batches), wanted, window, box)
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
    workers: list[Busy], step: Callable[[], Any], wanted: list[tuple[int, int]], window: float, box: float
) -> tuple[Beside, ...]:
    """Alone and together turn by turn: a core's speed shifts within tenths of a second, and their ratio does not."""
    prepared: dict[tuple[int, int], list[float]] = defaultdict(list)
    stepped: dict[tuple[int, int], list[float]] = defaultdict(list)
    start = time.perf_counter()
    observe(workers, lambda: time.sleep(window))  # first samples are colder than those that follow
    for number in range(_ROUNDS):
        if number >= _LEAST_ROUNDS and time.perf_counter() - start > box:
            break
        for team, count in wanted[:: 1 if number % 2 else -1]:
            alone = observe(workers[:1], lambda: time.sleep(window)).per_second
            if alone <= 0:
                continue
            if not team:
                together = observe(workers[:count], lambda: time.sleep(window))
            else:
                torch.set_num_threads(team)
                step()
                before = _rate(step, window)
                seen: list[float] = []
                together = observe(workers[:count], lambda: seen.append(_rate(step, window)))  # noqa: B023
                stepped[team, count].append(seen[0] / before)
            prepared[team, count].append(together.per_second / alone)
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
