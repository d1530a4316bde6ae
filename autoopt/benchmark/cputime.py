"""Processes around this one, the machine's memory, and CPU seconds of this trial and of everybody else, as the kernel
counts them. Needs no torch: servers and trials' parents ask as well."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

_LISTED = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
"""Whether the kernel lists the children of a process; looking through all processes takes far longer."""
_TICKS = os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The direct children of a process; empty when it is gone."""
    if not _LISTED:
        return [int(each) for each in os.listdir("/proc") if each.isdigit() and parent(int(each)) == pid]
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found


def parent(pid: int) -> int:
    """The process that another one is a child of; 0 where there is none, or it is gone."""
    fields = stat(pid)
    return int(fields[1]) if fields else 0


def memory() -> tuple[int, int]:
    """Bytes of the machine: all, and those that a process can still have."""
    with open("/proc/meminfo") as file:
        known = {name: int(value.split()[0]) * 1024 for name, _, value in (line.partition(":") for line in file)}
    return known["MemTotal"], known["MemAvailable"]


def descendants(pid: int | None = None) -> list[int]:
    """All live processes below one (this one by default), the nearest first."""
    found: list[int] = []
    layer = [pid or os.getpid()]
    while layer:
        layer = [child for above in layer for child in children(above)]
        found += layer
    return found


@dataclass(frozen=True)
class CpuTimes:
    """``own``: this process and its descendants; ``busy``: the whole machine, stolen time included.

    ``page_faults``: pages that this process has touched first, each of which the system had to give it (minor faults).
    ``waited``: for a core, of each of this process's threads; ``workers``: CPU seconds of each thread of its
    descendants. Empty where the kernel does not tell.
    """

    own: float
    busy: float | None
    page_faults: int = 0
    waited: Mapping[int, float] = field(default_factory=dict)
    workers: Mapping[int, float] = field(default_factory=dict)


def cpu_times(*, with_children: bool) -> CpuTimes:
    """Counters now; differences between two of them mean something.

    ``with_children``: live descendants are this process's own, as children that ended are in any case.
    """
    faults, ended = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, os.times()
    own, below = time.process_time() + ended.children_user + ended.children_system, list[int]()
    if with_children:
        below = descendants()
        own += sum((sum(int(value) for value in stat(pid)[11:15]) / _TICKS) for pid in below)
    busy: float | None = None
    with contextlib.suppress(OSError, ValueError), open("/proc/stat") as file:
        user, nice, system, _idle, _wait, irq, softirq, steal = map(int, file.readline().split()[1:9])
        busy = (user + nice + system + irq + softirq + steal) / _TICKS
    waited = {thread: waiting for thread, (_, waiting) in _threads(os.getpid()).items()}
    workers = {thread: running for pid in below for thread, (running, _) in _threads(pid).items()}
    return CpuTimes(own, busy, faults, waited, workers)


def _threads(pid: int) -> dict[int, tuple[float, float]]:
    """Seconds on a core, and of waiting for one, of each thread of a process; nothing where the kernel keeps none."""
    found = dict[int, tuple[float, float]]()
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/task/{thread}/schedstat") as file:
                running, waiting, _ = map(int, file.read().split())
                found[int(thread)] = running / 1e9, waiting / 1e9
    return found


def stalled_seconds(before: CpuTimes, after: CpuTimes, seconds: float) -> float | None:
    """Seconds of so many in which a thread of this process waited for a core: the others wait for it at the end of each
    operator. Threads wait independently of one another, as far as is known. None where the kernel does not tell."""
    if not before.waited or seconds <= 0:
        return None
    waited = (after.waited[thread] - began for thread, began in before.waited.items() if thread in after.waited)
    return seconds * (1 - prod(1 - min(max(each, 0.0) / seconds, 1.0) for each in waited))


def worker_seconds(before: CpuTimes, after: CpuTimes) -> float | None:
    """CPU seconds of descendants between two readings; None where one has ended, or the kernel does not tell."""
    if not before.workers or before.workers.keys() - after.workers.keys():
        return None
    return sum(now - before.workers.get(thread, 0.0) for thread, now in after.workers.items())


def foreign_seconds(before: CpuTimes, after: CpuTimes) -> float | None:
    """CPU seconds of others between two readings; the counters tick in hundredths, so that below 0 reads 0."""
    if before.busy is None or after.busy is None:
        return None
    return max((after.busy - before.busy) - (after.own - before.own), 0.0)


def foreign_cores(before: CpuTimes, after: CpuTimes, seconds: float) -> float | None:
    """Cores that others used, on average, between two readings that lie so many seconds apart."""
    foreign = foreign_seconds(before, after)
    return None if foreign is None or seconds <= 0 else foreign / seconds


def stat(pid: int) -> list[str]:
    """What the kernel reports about a process, from its state (``R``, ``S``, ``T`` stopped ...) on; nothing of one that
    is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()
    return []
