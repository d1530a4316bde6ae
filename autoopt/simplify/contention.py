"""What cores are worth when loader workers and compute threads ask for them at once."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import torch

from autoopt.simplify.forked import can_fork
from autoopt.simplify.parts import cores_available

_WORK = 20_000


def contention(box: float) -> tuple[float | None, float | None, float | None]:
    """Speeds under load over speeds alone, measured with one spinning process per core.

    Returns:
        of such a process while the compute threads of this one fill the cores as well; of those compute
        threads then; and of such a process while there are only its like. None where nothing can be forked.
    """
    if not can_fork():
        return None, None, None
    cores = cores_available()
    context = multiprocessing.get_context("fork")
    counters: list[Synchronized[int]] = [context.Value("Q", 0, lock=False) for _ in range(cores)]  # type: ignore[misc]
    gates = [context.Event() for _ in range(cores)]
    processes = [context.Process(target=_spin, args=pair, daemon=True) for pair in zip(counters, gates, strict=True)]
    for process in processes:
        process.start()
    try:
        return _measure(counters, gates, box)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _measure(counters: list[Any], gates: list[Any], box: float) -> tuple[float, float, float]:
    compute = Compute()
    share = box / 12
    alone, crowd, workers, computes = [], [], [], []
    for _ in range(3):  # interleaved, so that a burst of the machine does not fall on one side
        single = compute.rate(share)
        gates[0].set()
        alone.append(_rate(counters[:1], share))
        for gate in gates[1:]:
            gate.set()
        crowd.append(_rate(counters, share))
        before, start = _total(counters), time.perf_counter()
        computes.append(compute.rate(share) / single)
        workers.append((_total(counters) - before) / (time.perf_counter() - start) / len(counters))
        for gate in gates:
            gate.clear()
    one = statistics.median(alone)
    return (
        min(1.0, statistics.median(workers) / one),
        min(1.0, statistics.median(computes)),
        min(1.0, statistics.median(crowd) / one),
    )


def _total(counters: list[Any]) -> int:
    return sum(counter.value for counter in counters)


def _rate(counters: list[Any], seconds: float) -> float:
    """Rounds per second of one of these processes."""
    before, start = _total(counters), time.perf_counter()
    time.sleep(seconds)
    return (_total(counters) - before) / (time.perf_counter() - start) / len(counters)


def _spin(counter: Any, gate: Any) -> None:
    while True:
        gate.wait()
        if os.getppid() == 1:
            return
        total = 0
        for number in range(_WORK):
            total += number * number
        counter.value += 1


class Compute:
    """Operators of a small network's size: many short parallel regions, as a training step has them."""

    def __init__(self) -> None:
        self.left, self.right = torch.randn(192, 192), torch.randn(192, 192)

    def rate(self, seconds: float) -> float:
        """Rounds per second."""
        rounds, start = 0, time.perf_counter()
        while True:
            torch.relu(self.left @ self.right).add_(1.0)
            rounds += 1
            passed = time.perf_counter() - start
            if passed >= seconds:
                return rounds / passed
