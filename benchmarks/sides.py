"""Training loops that are not autoopt's, as arms of its comparisons: a trial's process, asked by the tasks here.

A side is what the process makes of its spec (``Launcher(live="module:Side")``). It has a ``device``, counts its
``steps`` and ``samples``, and ``run(enough)`` trains until ``enough(now)`` holds after a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from autoopt.benchmark.cputime import cpu_times, foreign_seconds
from autoopt.records import Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arm import TrialArm
from autoopt.trial.process import LocalTrial

FEWEST, LATELY = 20, 10
"""Steps before which no side is steady, and the latest of them, of which the second half is held against the first."""


class Side(Protocol):
    """A loop that can be run for a while."""

    device: Any
    steps: int
    samples: int

    def run(self, enough: Callable[[float], bool]) -> None: ...


class SideArm(TrialArm):
    """A side in a trial's process; the tasks of this module answer in place of autoopt's."""

    def __init__(self, process: LocalTrial, plan: Plan) -> None:
        super().__init__(_Redirected(process), plan)  # type: ignore[arg-type]

    def ready(self) -> Any:
        """A side is built when its process has been started."""


class _Redirected:
    def __init__(self, process: LocalTrial) -> None:
        self._process = process
        self.freeze, self.thaw, self.close = process.freeze, process.thaw, process.close

    def call(self, task: str, *, timeout: float, **arguments: Any) -> Any:
        return self._process.call(f"{__name__}:{task.rpartition(':')[2]}", timeout=timeout, **arguments)


def warm_up(side: Side, max_seconds: float) -> Startup:
    """A task: trains until the time is up or steps are steady."""
    began = time.perf_counter()
    times = [began]

    def enough(now: float) -> bool:
        times.append(now)
        lately = [b - a for a, b in zip(times[-LATELY - 1 : -1], times[-LATELY:], strict=False)]
        half = LATELY // 2
        settled = len(times) > FEWEST and max(lately[half:]) < 1.5 * min(lately[:half])
        return settled or now - began > max_seconds

    side.run(enough)
    return Startup(
        build_seconds=0.0,
        setup_seconds=0.0,
        warmup_seconds=time.perf_counter() - began,
        warmup_steps=len(times) - 1,
        fixed_seconds=0.0,
    )


def run_block(side: Side, seconds: float, min_steps: int = 1, ramp_seconds: float = 0.0, cycle: int = 1) -> Block:
    """A task: trains for ``ramp_seconds`` unmeasured, then measures. ``cycle`` is 1: ``warm_up`` tells no other."""
    ramped = time.perf_counter() + ramp_seconds
    if ramp_seconds > 0:
        side.run(lambda now: now >= ramped)
    side.device.synchronize()
    steps, samples, times = side.steps, side.samples, []
    before, began = cpu_times(with_children=True), time.perf_counter()

    def enough(now: float) -> bool:
        times.append(now)
        return len(times) >= min_steps and now - began >= seconds

    side.run(enough)
    side.device.synchronize()
    whole = time.perf_counter() - began
    return Block(
        steps=side.steps - steps,
        samples=side.samples - samples,
        seconds=whole,
        step_seconds=tuple(b - a for a, b in zip([began, *times[:-1]], times, strict=True)),
        foreign_cpu_seconds=foreign_seconds(before, cpu_times(with_children=True)),
        peak_memory_bytes=side.device.peak_bytes(),
        first_step=steps,
    )
