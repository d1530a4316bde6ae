"""The input side alone: one sample, collate, the user's loader, and what handing a batch over costs."""

from __future__ import annotations

import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader, Dataset

from autoopt.records import Deeper
from autoopt.simplify.batches import Fetch, few, fresh_loader
from autoopt.simplify.drift import SAMPLES, ReferenceSpeed, normalized, sensitivity
from autoopt.simplify.drilldown import open_dataset
from autoopt.simplify.source import profile_lines
from autoopt.simplify.stage_timings import InputTimings, Timing
from autoopt.simplify.timing import MOST, is_steady, repeat, summary

_CHUNK_SECONDS = 2e-3
_STATS = Path("/proc/thread-self/schedstat")


class Clock:
    """Wall, CPU and waiting seconds since it was made. Waiting for a core is not waiting."""

    def __init__(self) -> None:
        self.switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        self.delay = _run_delay()
        self.cpu = time.process_time()
        self.wall = time.perf_counter()

    def read(self) -> tuple[float, float, float]:
        wall = time.perf_counter() - self.wall
        cpu = time.process_time() - self.cpu
        delay = _run_delay() - self.delay
        slept = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw > self.switches
        return wall, cpu, max(0.0, wall - cpu - delay) if slept else 0.0


def measure_inputs(loader: DataLoader[Any], time_limit: float) -> InputTimings:
    """Measures the input side of a loader. Meant for a forked child: it leaves caches warm behind it."""
    notes: list[str] = []
    fetch = Fetch(loader)
    sample, spread = _sample(fetch, time_limit * 0.3)
    batch, collate = _collate(fetch, time_limit * 0.1)
    alone = _loader(loader, time_limit * 0.25, notes)
    handover, receive = _handover(batch, time_limit * 0.15) if batch is not None else (None, None)
    collating = _open_collate(fetch, collate, time_limit * 0.05)
    opened = open_dataset(
        loader.dataset, lambda: few(fetch), sample.cpu_seconds or 0.0, sample.wait_seconds or 0.0, time_limit * 0.2
    )
    return InputTimings(
        sample=sample,
        sample_spread=spread,
        collate=collate,
        loader=alone,
        handover=handover,
        receive=receive,
        deeper=opened.working,
        waiting=opened.waiting,
        collating=collating,
        notes=(*notes, *opened.notes),
    )


def _sample(fetch: Fetch, time_limit: float) -> tuple[Timing, float | None]:
    """One sample alone, in chunks long enough to be timed; spread: deviation of one sample over its mean."""
    many = hasattr(fetch.dataset, "__getitems__")
    pending: list[Any] = []
    size = 1
    walls: list[float] = []
    cpus: list[float] = []
    waits: list[float] = []
    readings: list[float] = []
    reference = ReferenceSpeed()
    cold = None
    start = time.perf_counter()
    while time.perf_counter() - start < time_limit or len(walls) < 2:
        if len(walls) >= MOST:
            break
        while not fetch.iterable and len(pending) < size:
            pending += fetch.indices()
        if many:
            size = max(size, min(len(pending), fetch.size))
        chunk, pending = pending[:size], pending[size:]
        before = reference.now()
        clock = Clock()
        got = fetch.samples(chunk, size)
        wall, cpu, wait = clock.read()
        beside = (before + reference.now()) / 2
        count = max(1, len(got) if fetch.iterable else len(chunk))
        if cold is None:
            cold = wall / count
            size = max(1, min(256, int(_CHUNK_SECONDS / max(cold, 1e-6))))
            continue
        walls.append(wall / count)
        cpus.append(cpu / count)
        waits.append(wait / count)
        readings.append(beside)
    spread = statistics.stdev(walls) / statistics.fmean(walls) if len(walls) > 3 and size == 1 else None
    working = sensitivity(cpus, readings, SAMPLES)
    # a mean keeps rare slow samples, which a median forgets; trimmed, since bursts of the machine are not the dataset's
    cpu, wait = _trimmed(normalized(cpus, readings, working)), _trimmed(waits)
    timing = summary(walls, readings=readings, usual=SAMPLES * cpu / max(cpu + wait, 1e-12), cpu_seconds=cpu)
    # its own degree, not that of the wall-clock, in which waiting is
    degree = min(1.0, working * cpu / max(timing.seconds, 1e-12))
    return timing.model_copy(update={"wait_seconds": wait, "sensitivity": degree}), spread


def _collate(fetch: Fetch, time_limit: float) -> tuple[Any, Timing | None]:
    collate = fetch.loader.collate_fn
    if fetch.loader.batch_sampler is None and fetch.loader.batch_size is None:
        return fetch.samples(fetch.indices(), 1)[0], None
    samples = fetch.samples(fetch.indices(), fetch.size)
    return collate(samples), repeat(lambda: collate(samples), time_limit, reference=ReferenceSpeed(), usual=SAMPLES)


def _open_collate(fetch: Fetch, collate: Timing | None, time_limit: float) -> tuple[Deeper, ...]:
    """The lines of a collate function of the user's own; seconds per micro-batch."""
    if collate is None:
        return ()
    samples = fetch.samples(fetch.indices(), fetch.size)
    return profile_lines(lambda: fetch.loader.collate_fn(samples), time_limit).chain("wall", collate.seconds)


def _loader(loader: DataLoader[Any], time_limit: float, notes: list[str]) -> Timing | None:
    """Seconds per micro-batch of the user's loader when nobody uses the batches."""
    clone = fresh_loader(loader)
    ahead = clone.num_workers * (clone.prefetch_factor or 0) + clone.num_workers
    stream = iter(clone)
    if next(stream, None) is None:
        return None
    for _ in range(ahead):  # the queue is full at first
        if next(stream, None) is None:
            stream = iter(clone)
    walls: list[float] = []
    cpus: list[float] = []
    readings: list[float] = []
    reference = ReferenceSpeed()
    start = time.perf_counter()
    group = max(1, clone.num_workers)  # batches come in bunches, one of each worker
    while len(walls) < 3 or (
        time.perf_counter() - start < time_limit
        and len(walls) < MOST
        and (not clone.num_workers or not is_steady(walls, 8))
    ):
        before = reference.now()
        mark, spent, taken = time.perf_counter(), time.thread_time(), 0
        for _ in range(group):
            if next(stream, None) is None:
                break
            taken += 1
        if taken == group:
            walls.append((time.perf_counter() - mark) / group)
            cpus.append((time.thread_time() - spent) / group)
            readings.append((before + reference.now()) / 2)
        else:
            stream = iter(clone)
            next(stream, None)
        if time.perf_counter() - start > 4 * time_limit:
            break
    if not walls:
        notes.append("the loader alone was not measured: an epoch is shorter than its queue")
        return None
    if clone.num_workers:  # they work while the reference is read, and each at its own
        return summary(walls, cpu_seconds=statistics.median(cpus))
    share = min(1.0, sum(cpus) / max(sum(walls), 1e-12))
    even = normalized(cpus, readings, sensitivity(cpus, readings, SAMPLES))
    return summary(walls, readings=readings, usual=SAMPLES * share, cpu_seconds=statistics.median(even))


def _handover(batch: Any, time_limit: float) -> tuple[Timing | None, Timing | None]:
    """A ready micro-batch from one worker to this process: wall-clock of both, CPU seconds of this one."""
    loader: DataLoader[Any] = DataLoader(
        _Same(batch), batch_size=None, num_workers=1, collate_fn=_identity, multiprocessing_context="fork"
    )
    walls: list[float] = []
    cpus: list[float] = []
    end = None
    mark = spent = 0.0
    for number, _ in enumerate(loader):
        now, cpu = time.perf_counter(), time.thread_time()
        if number >= 4:
            walls.append(now - mark)
            cpus.append(cpu - spent)
        mark, spent = now, cpu
        end = end or now + time_limit
        if now > end or is_steady(walls, 60):
            break
    if not walls:
        return None, None
    return summary(walls), summary(cpus)


class _Same(Dataset[Any]):
    """Always the same batch, copied each time as a collate in a worker would write it."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        return tree_map(lambda item: item.clone() if isinstance(item, torch.Tensor) else item, self.batch)


def _identity(batch: Any) -> Any:
    return batch


def _trimmed(values: list[float]) -> float:
    """The mean without the highest and the lowest tenth."""
    cut = len(values) // 10
    ordered = sorted(values)
    return statistics.fmean(ordered[cut : len(ordered) - cut])


def _run_delay() -> float:
    """Seconds that this thread was ready and got no core; 0 where the system does not tell."""
    try:
        return float(_STATS.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0
