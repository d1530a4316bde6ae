"""What cores are worth when loader workers and compute threads ask for them at once."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from autoopt.simplify.forked import can_fork
from autoopt.simplify.parts import cores_available

_WORK = 5_000
_ROUNDS = 5
_LEAST = 0.05
_UNDISTURBED = 0.9


def contention(box: float) -> Shares:
    """Measured with one spinning process per core beside the compute threads of this process."""
    if not can_fork():
        return Shares(None, None, None)
    context = multiprocessing.get_context("fork")
    spinners = [Busy(context, _count) for _ in range(cores_available())]
    try:
        return _measure(spinners, box)
    finally:
        for spinner in spinners:
            spinner.end()


def _measure(spinners: list[Busy], box: float) -> Shares:
    """Several short rounds. Speed per CPU second tells what a busy neighbour costs a core, whoever else is
    there; who gets which core is told only by rounds in which nobody else wanted one."""
    compute = Compute()
    share = box / (4 * _ROUNDS)
    singles, alone, crowd, mixed = [], [], [], []
    for _ in range(_ROUNDS):
        singles.append(compute.rate(share))
        alone.append(observe(spinners[:1], lambda: time.sleep(share)))
        crowd.append(observe(spinners, lambda: time.sleep(share)))
        speeds: list[float] = []
        both = observe(spinners, lambda: speeds.append(compute.rate(share)))  # noqa: B023
        mixed.append((both.per_second, speeds[0]))
    one = statistics.median(seen.per_cpu_second for seen in alone)
    parallel = min(1.0, statistics.median(seen.per_cpu_second for seen in crowd) / one)
    if statistics.median(seen.cores for seen in crowd) < _UNDISTURBED:
        return Shares(None, None, parallel)
    worker = statistics.median(worker for worker, _ in mixed) / max(seen.per_second for seen in alone)
    team = statistics.median(speed for _, speed in mixed) / max(singles)
    return Shares(min(1.0, worker), min(1.0, max(team, _LEAST)), parallel)


@dataclass(frozen=True)
class Shares:
    """Speeds under load over speeds alone; ``worker`` and ``team`` are None on a machine that others kept busy."""

    worker: float | None
    team: float | None
    parallel: float | None


@dataclass(frozen=True)
class Seen:
    """Rounds of one spinner per second and per second of CPU time, and how much of a core each got."""

    per_second: float
    per_cpu_second: float
    cores: float


class Busy:
    """A forked process that works while its gate is open.

    Args:
        context: of multiprocessing; fork.
        work: does a little and says how much.
    """

    def __init__(self, context: Any, work: Callable[[], int]) -> None:
        self.counter = context.Value("Q", 0, lock=False)
        self.gate = context.Event()
        arguments = (work, self.counter, self.gate, os.getpid())
        self.process = context.Process(target=_work, args=arguments, daemon=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, as a DataLoader does it
            self.process.start()
        self._usage = psutil.Process(self.process.pid)

    def cpu_seconds(self) -> float:
        try:
            times = self._usage.cpu_times()
        except psutil.Error:  # its work failed, and it is gone
            return 0.0
        return float(times.user + times.system)

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def observe(spinners: list[Busy], meanwhile: Callable[[], Any]) -> Seen:
    """What they did while something else ran; none of them works before or after."""
    for spinner in spinners:
        spinner.gate.set()
    count, cpu, start = _total(spinners), _cpu(spinners), time.perf_counter()
    meanwhile()
    wall = time.perf_counter() - start
    counted, used = _total(spinners) - count, _cpu(spinners) - cpu
    for spinner in spinners:
        spinner.gate.clear()
    each = len(spinners)
    return Seen(counted / wall / each, counted / max(used, 1e-2), used / wall / each)


def _total(spinners: list[Busy]) -> int:
    return sum(spinner.counter.value for spinner in spinners)


def _cpu(spinners: list[Busy]) -> float:
    return sum(spinner.cpu_seconds() for spinner in spinners)


def _work(work: Callable[[], int], counter: Any, gate: Any, parent: int) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork; a loader's worker does the same
    while os.getppid() == parent:
        gate.wait(1.0)
        while gate.is_set():
            try:
                counter.value += work()
            except Exception:  # a dataset of the user's: its errors are told where samples are measured alone
                return


def _count() -> int:
    total = 0
    for number in range(_WORK):
        total += number * number
    return 1


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
