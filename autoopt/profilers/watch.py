"""Drift over a long run: windows of the step clock, and a table of counters read between them."""

from __future__ import annotations

import gc
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import torch

from autoopt.benchmark.cputime import descendants
from autoopt.benchmark.device import Device, private_bytes, status_bytes
from autoopt.benchmark.environment import nvml_reader
from autoopt.benchmark.libraries import is_users
from autoopt.benchmark.live import drives
from autoopt.profilers.growing import Growing, growing_in
from autoopt.records import JsonDict
from autoopt.records.drift import Drift, Growth
from autoopt.simplify.costly import LEAST_SHARE
from autoopt.simplify.drift import reference_seconds

LEAST_STEPS, LEAST_SECONDS = 8, 0.25
"""Of a window, until there are so many windows that neighbours are joined and each is twice as long."""
FEWEST, MOST = 6, 32
"""Windows: two thirds are compared, of at least two each; more are joined in pairs."""
_EXPLAINS = 0.1
"""Share of the slowdown below which a counter is no cause of it."""
_MIB = 2**20
"""Bytes, the unit in which memory and files are reported."""
_INPUT = ("data", "epoch")


@dataclass(frozen=True)
class Counter:
    """A row of the table.

    Attributes:
        read: its value now; None where it cannot be read here.
        means: the reason behind its growth.
        stages: those that it can slow; empty: any.
        total: it counts since the process began, so that the value of a window is what a step adds.
        share: of a slowdown that its early and late value explain, given the step's own, in milliseconds.
    """

    name: str
    unit: str
    read: Callable[[Any], float | None]
    means: str
    stages: tuple[str, ...] = ()
    total: bool = False
    share: Callable[[float, float, float], float] | None = None


class Machine:
    """Everything that counters are read from. ``collected``: seconds that Python's garbage collector has taken."""

    def __init__(self, device: Device) -> None:
        self.device, self.nvml = device, nvml_reader(device)
        self.collected = self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collected += time.perf_counter() - self._began

    def close(self) -> None:
        gc.callbacks.remove(self._note)

    def read_bytes(self) -> float | None:
        own, *workers = map(_read_by, (os.getpid(), *descendants()))
        return None if own is None else own + sum(each or 0.0 for each in workers)

    def written(self) -> float | None:
        try:
            numbers = os.listdir("/proc/self/fd")
        except OSError:
            return None
        return sum(map(_written_to, numbers)) / _MIB

    def host_memory(self) -> float | None:
        resident = status_bytes("VmRSS")
        return None if resident is None else resident / _MIB

    def cuda(self, ask: Callable[[Any], int]) -> float | None:
        return ask(self.device.torch) / _MIB if self.device.kind == "cuda" else None

    def cycle(self) -> float | None:
        clock = self.nvml().get("clock_hertz") if self.nvml is not None else None
        return 1e9 / clock if clock else None


def _read_by(pid: int) -> float | None:
    """KiB that a process has read from storage; None of one that is gone, or may not be asked."""
    try:
        with open(f"/proc/{pid}/io") as file:
            known = dict(line.split(": ") for line in file)
    except OSError:
        return None
    return int(known["read_bytes"]) / 1024


def _written_to(number: str) -> int:
    """Bytes of the file behind a descriptor of this process that is open for writing; 0 of any other."""
    try:
        file = os.stat(f"/proc/self/fd/{number}")
        with open(f"/proc/self/fdinfo/{number}") as info:
            flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags"))
    except (OSError, StopIteration):
        return 0
    writes = flags & os.O_ACCMODE in (os.O_WRONLY, os.O_RDWR)
    return file.st_size if writes and stat.S_ISREG(file.st_mode) and file.st_nlink else 0


def _slower(early: float, late: float, step: float) -> float:
    return step * (late / early - 1) if early > 0 else 0.0


def _no_time(early: float, late: float, step: float) -> float:
    """It fills what there is of it; until then no step waits for it."""
    return 0.0


COUNTERS = (
    Counter(
        "garbage collection",
        "ms",
        lambda machine: 1e3 * machine.collected,
        "the collector goes through ever more objects: find what keeps them, or gc.freeze() after the start",
        total=True,
        share=lambda early, late, step: late - early,
    ),
    Counter(
        "time of a fixed loop on a core",
        "us",
        lambda machine: 1e6 * reference_seconds(),
        "the machine itself grows slower: heat, clocks, other programs",
        share=_slower,
    ),
    Counter(
        "cycle of the device's clock",
        "ns",
        Machine.cycle,
        "the device lowers its clock: heat or its power limit",
        ("forward", "backward", "optimizer"),
        share=_slower,
    ),
    Counter(
        "storage read",
        "KiB",
        Machine.read_bytes,
        "the page cache misses: the data no longer fits in memory next to what the run keeps",
        _INPUT,
        total=True,
    ),
    Counter(
        "memory of loader workers",
        "MiB",
        lambda machine: sum(map(private_bytes, descendants())) / _MIB,
        "workers copy or keep ever more: hold the dataset's items in arrays instead of Python objects",
        _INPUT,
    ),
    Counter(
        "allocator retries",
        "retries",
        lambda machine: machine.device.allocation_retries() if machine.device.kind == "cuda" else None,
        "the device's memory is full, so that its cache is freed and taken again",
        total=True,
    ),
    Counter(
        "device memory reserved but not allocated",
        "MiB",
        lambda machine: machine.cuda(lambda at: torch.cuda.memory_reserved(at) - torch.cuda.memory_allocated(at)),
        "the device's memory is fragmented: PYTORCH_ALLOC_CONF=expandable_segments:True",
    ),
    Counter(
        "device memory of tensors",
        "MiB",
        lambda machine: machine.cuda(torch.cuda.memory_allocated),
        "tensors are kept on the device",
        share=_no_time,
    ),
    Counter(
        "files open for writing",
        "MiB",
        Machine.written,
        "a log grows",
        share=_no_time,
    ),
    Counter(
        "host memory",
        "MiB",
        Machine.host_memory,
        "the process keeps ever more",
        share=_no_time,
    ),
)  # fmt: skip


@dataclass
class Window:
    """Steps between two readings of the counters. Seconds; ``levels``: at its end; ``added``: within it."""

    steps: int
    seconds: float
    stages: dict[str, float]
    levels: dict[str, float]
    added: dict[str, float]
    growing: dict[tuple[str, str], Growing]

    def joined(self, later: Window) -> Window:
        return Window(
            self.steps + later.steps,
            self.seconds + later.seconds,
            _sum(self.stages, later.stages),
            later.levels,
            _sum(self.added, later.added),
            later.growing,
        )


def _sum(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


@drives
def watch(live: Any, seconds: float) -> JsonDict:
    """Trains on for so long, or to the run's own end: a :class:`~autoopt.records.drift.Drift`."""
    training = live.training
    machine = Machine(live.device)
    windows: list[Window] = []
    least, long = LEAST_STEPS, LEAST_SECONDS
    began, first_step = time.monotonic(), training.steps
    try:
        _trained(training, least, long)  # the first window pays what is paid once
        before, _ = training.do(lambda: _read(machine, training))
        while time.monotonic() - began < seconds and not training.over:
            lap = _trained(training, least, long)
            if training.over or not lap.steps:
                break
            levels, growing = training.do(lambda: _read(machine, training))
            added = {
                row.name: max(levels[row.name] - before.get(row.name, 0.0), 0.0)
                for row in COUNTERS
                if row.total and row.name in levels
            }
            windows.append(Window(len(lap.steps), lap.seconds, lap.stages, levels, added, growing))
            before = levels
            if len(windows) >= MOST:
                windows = [windows[at].joined(windows[at + 1]) for at in range(0, MOST, 2)]
                least, long = 2 * least, 2 * long
            if training.ends_at is not None and training.steps >= training.ends_at:
                break
    finally:
        machine.close()
    found = judged(windows, training.steps - first_step, time.monotonic() - began)
    return found.model_dump()


def _trained(training: Any, least: int, seconds: float) -> Any:
    return training.follow(lambda done, elapsed: done >= least and elapsed >= seconds).lap()


def _read(machine: Machine, training: Any) -> tuple[dict[str, float], dict[tuple[str, str], Growing]]:
    """All counters now, in the thread that trains: its frames are the script's."""
    levels = {row.name: value for row in COUNTERS if (value := row.read(machine)) is not None}
    return levels, growing_in(_roots(training))


def _roots(training: Any) -> Iterator[tuple[str, str, Any]]:
    """File, name and value of all that the user's code holds: on the call stack, in modules, in the training."""
    at: Any = sys._getframe(1)
    while at is not None:
        if is_users(at.f_code.co_filename):
            for name, value in list(at.f_locals.items()):
                yield at.f_code.co_filename, name, value
        at = at.f_back
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and is_users(file):
            for name, value in list(vars(module).items()):
                yield file, name, value
    dataset = getattr(training.loader.loader, "dataset", None)
    for name, value in (("dataset", dataset), *((type(root).__name__, root) for root in training.roots)):
        if value is not None:
            file = getattr(sys.modules.get(type(value).__module__), "__file__", None) or ""
            yield file, name, value


def growth(name: str, unit: str, steps: Sequence[float], values: Sequence[float], **more: Any) -> Growth:
    """A counter over windows: its medians, and the median of its slopes, which single bursts do not move.

    Slopes are those between windows that lie half the run apart or more: neighbours share the machine's speed.

    Args:
        steps: at which each value was read.
    """
    count = len(values)
    third, half = max(count // 3, 1), count // 2
    first, last = sorted(values[:third]), sorted(values[-third:])
    slopes = sorted(
        (values[late] - values[early]) / (steps[late] - steps[early])
        for early in range(count)
        for late in range(early + half, count)
    )
    at = int(0.05 * len(slopes))  # beyond each end of the 90 % interval
    middle, low, high = median(slopes), slopes[at], slopes[-1 - at]
    apart = last[len(last) // 4] > first[-1 - len(first) // 4] * (1 + LEAST_SHARE)
    return Growth(
        name=name, unit=unit, early=median(first), late=median(last), slope=middle, low=low, high=high,
        grows=low > 0 and apart, **more,
    )  # fmt: skip


def _common(windows: Sequence[Window]) -> list[float]:
    """How much slower than usual a window's stages were alike: at the median of those with 5 % of a step or more.

    One stage alone that grows slower does not move the median of three; the machine slows them all.
    """
    whole = sum(each.seconds for each in windows)
    names = {name for each in windows for name in each.stages}
    large = [name for name in names if sum(each.stages.get(name, 0.0) for each in windows) >= 0.05 * whole]
    if len(large) < 3:
        return [1.0] * len(windows)
    each_step = {name: [each.stages.get(name, 0.0) / each.steps for each in windows] for name in large}
    usual = {name: fmean(values) for name, values in each_step.items()}
    return [median(each_step[name][at] / usual[name] for name in large) or 1.0 for at in range(len(windows))]


def judged(windows: Sequence[Window], steps: int, seconds: float) -> Drift:
    """The finding from the windows of a run: pure."""
    found = Drift(steps=steps, seconds=seconds, least_steps=(FEWEST + 1) * LEAST_STEPS)
    if len(windows) < FEWEST:
        return found
    ends = [float(sum(each.steps for each in windows[: at + 1])) for at in range(len(windows))]
    step = growth("step", "ms", ends, [1e3 * each.seconds / each.steps for each in windows])
    both = list(zip(windows, _common(windows), strict=True))
    own = growth("own", "ms", ends, [1e3 * each.seconds / each.steps / by for each, by in both])
    names = sorted({name for each in windows for name in each.stages})
    stages = tuple(
        growth(name, "ms", ends, [1e3 * each.stages.get(name, 0.0) / each.steps / by for each, by in both])
        for name in names
    )
    counters = [*_of_script(windows, ends), *_of_table(windows, ends, step)]
    slowed = max(stages, key=lambda each: each.late - each.early).name if own.grows and stages else None
    slower = step.grows or slowed is not None
    causes = [each for each in counters if slower and each.grows and _can_slow(each, slowed)]
    causes.sort(key=lambda each: -(each.explains or 0.0))  # as in the table where they are alike
    return found.model_copy(
        update={
            "step": step,
            "own": own,
            "slowed": slowed,
            "stages": stages,
            "counters": tuple(counters),
            "causes": tuple(each.name for each in causes),
        }
    )


def _can_slow(counter: Growth, stage: str | None) -> bool:
    """Args: stage: the one that grew slower; None where all did alike, which only what is counted in time explains."""
    if stage is None:
        return counter.explains is not None and counter.explains >= _EXPLAINS and not counter.file
    explained = counter.explains is None or counter.explains >= _EXPLAINS
    return explained and (not counter.stages or stage in counter.stages)


def _of_table(windows: Sequence[Window], ends: Sequence[float], step: Growth) -> Iterator[Growth]:
    more = step.late - step.early
    for row in COUNTERS:
        if not all(row.name in each.levels for each in windows):
            continue
        values = [each.added[row.name] / each.steps if row.total else each.levels[row.name] for each in windows]
        if not any(values):
            continue
        found = growth(row.name, row.unit, ends, values, means=row.means, stages=row.stages)
        if row.share is not None and more > 0:
            found = found.model_copy(update={"explains": row.share(found.early, found.late, step.early) / more})
        yield found


def _of_script(windows: Sequence[Window], ends: Sequence[float]) -> Iterator[Growth]:
    """Containers and graphs of the script that grow; what each step goes through whole, or backward through, first."""
    found = []
    for key in windows[-1].growing:
        each = [window.growing.get(key) for window in windows]
        last = each[-1]
        assert last is not None
        sizes = [float(one.size) if one is not None else 0.0 for one in each]
        if sizes[-1] <= sizes[0]:
            continue
        grown = growth(last.name, last.unit, ends, sizes)
        if grown.grows:
            place, read = last.place()
            found.append(grown.model_copy(update={**place, "explains": 1.0 if read or last.graphs else None}))
    # a graph that no line adds to hangs on what another one keeps
    lines = [one for one in found if one.line is not None or one.unit != "nodes"]
    yield from sorted(lines or found, key=lambda one: -(one.explains or 0.0))
