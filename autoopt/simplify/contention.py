"""What cores are worth when loader workers and compute threads ask for them at once."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
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
    spinners = [_Spinner(context) for _ in range(cores_available())]
    try:
        return _measure(spinners, box)
    finally:
        for spinner in spinners:
            spinner.end()


def team_share(step: Callable[[], Any], box: float) -> float | None:
    """Speed of this process's own training step, over its speed alone, while every core has a busy worker too.

    How much threads lose that wait for each other depends on how often they do, so on the workload.
    None where nothing can be forked.
    """
    if not can_fork():
        return None
    context = multiprocessing.get_context("fork")
    spinners = [_Spinner(context) for _ in range(cores_available())]
    ratios: list[float] = []
    try:
        step()
        end = time.perf_counter() + box
        while len(ratios) < 3 or (time.perf_counter() < end and len(ratios) < 9):
            alone = _steps_per_second(step, box / 12)
            speeds: list[float] = []
            _observe(spinners, lambda: speeds.append(_steps_per_second(step, box / 12)))  # noqa: B023
            ratios.append(speeds[0] / alone)
    finally:
        for spinner in spinners:
            spinner.end()
    return min(1.0, max(statistics.median(ratios), _LEAST))


def _steps_per_second(step: Callable[[], Any], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while True:
        step()
        count += 1
        passed = time.perf_counter() - start
        if passed >= seconds:
            return count / passed


def _measure(spinners: list[_Spinner], box: float) -> Shares:
    """Several short rounds. Speed per CPU second tells what a busy neighbour costs a core, whoever else is
    there; who gets which core is told only by rounds in which nobody else wanted one."""
    compute = Compute()
    share = box / (4 * _ROUNDS)
    singles, alone, crowd, mixed = [], [], [], []
    for _ in range(_ROUNDS):
        singles.append(compute.rate(share))
        alone.append(_observe(spinners[:1], lambda: time.sleep(share)))
        crowd.append(_observe(spinners, lambda: time.sleep(share)))
        speeds: list[float] = []
        both = _observe(spinners, lambda: speeds.append(compute.rate(share)))  # noqa: B023
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
class _Seen:
    """Rounds of one spinner per second and per second of CPU time, and how much of a core each got."""

    per_second: float
    per_cpu_second: float
    cores: float


class _Spinner:
    """A process that counts while its gate is open."""

    def __init__(self, context: Any) -> None:
        self.counter = context.Value("Q", 0, lock=False)
        self.gate = context.Event()
        self.process = context.Process(target=_spin, args=(self.counter, self.gate, os.getpid()), daemon=True)
        self.process.start()
        self._usage = psutil.Process(self.process.pid)

    def cpu_seconds(self) -> float:
        times = self._usage.cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        self.process.kill()
        self.process.join()


def _observe(spinners: list[_Spinner], meanwhile: Callable[[], Any]) -> _Seen:
    for spinner in spinners:
        spinner.gate.set()
    count, cpu, start = _total(spinners), _cpu(spinners), time.perf_counter()
    meanwhile()
    wall = time.perf_counter() - start
    counted, used = _total(spinners) - count, _cpu(spinners) - cpu
    for spinner in spinners:
        spinner.gate.clear()
    each = len(spinners)
    return _Seen(counted / wall / each, counted / max(used, 1e-2), used / wall / each)


def _total(spinners: list[_Spinner]) -> int:
    return sum(spinner.counter.value for spinner in spinners)


def _cpu(spinners: list[_Spinner]) -> float:
    return sum(spinner.cpu_seconds() for spinner in spinners)


def _spin(counter: Any, gate: Any, parent: int) -> None:
    while os.getppid() == parent:
        gate.wait(1.0)
        while gate.is_set():
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
