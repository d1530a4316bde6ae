"""Exposed seconds of each stage of a step: by the host's clock on the CPU, by stream events on CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from autoopt.benchmark.device import Device

STAGES = ("data", "copy", "forward", "backward", "optimizer", "whole", "evaluate", "other")
"""``data``: waiting for the next batch; ``optimizer`` includes unscaling, clipping and the scheduler; ``whole``: what
a step that a plan has wrapped does not tell apart."""

_AHEAD = 4
_FOLD_EVERY = 256
"""Steps between readings of the events that the device has passed, so that a run of days does not keep them all."""


@dataclass
class Lap:
    """What a clock measured from ``start`` to ``stop``. Seconds."""

    seconds: float
    stages: dict[str, float]
    steps: list[float]


class StageClock:
    """Attributes the time since the last mark to the stage that ends now. For the CPU.

    ``mark`` is called several times in each step: it does nothing but read the clock and add.
    """

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._totals = dict.fromkeys(STAGES, 0.0)
        self._steps: list[float] = []
        self._began = self._last = self._step_began = perf_counter()

    def mark(self, stage: str) -> None:
        """The stage that ends here."""
        now = perf_counter()
        self._totals[stage] += now - self._last
        self._last = now

    def step_done(self) -> None:
        """The step that ends here; what no stage has claimed is ``other``."""
        now = perf_counter()
        self._totals["other"] += now - self._last
        self._steps.append(now - self._step_began)
        self._last = self._step_began = now

    def elapsed(self) -> float:
        """Seconds since ``start``."""
        return perf_counter() - self._began

    def stop(self) -> Lap:
        self.mark("other")
        return Lap(self._last - self._began, self._totals, self._steps)


class EventClock(StageClock):
    """The same by events on the device's stream, with one synchronization in ``stop``.

    Between two events lies the device's work, or its idle time where the host was late: just what the
    stage exposes. Events cost the host some microseconds, so that in short steps only some steps are
    split into stages; their shares stand for all.

    Args:
        device: the CUDA device.
        fine_above: steps longer than this are all split, seconds; shorter ones in proportion.
    """

    def __init__(self, device: Device, fine_above: float = 0.004) -> None:
        self._device: Any = device
        self._fine_above = fine_above
        self._every = 1
        super().__init__()

    def start(self) -> None:
        self._device.synchronize()
        super().start()
        self._count = 0
        self._fine = True
        self._mark = self._step_mark = self._device.event()
        self._events: list[tuple[str, Any]] = []
        self._boundaries: list[Any] = []

    def mark(self, stage: str) -> None:
        # an event within a graph that is being recorded is a node of it, and has no time
        if self._fine and not recording():
            self._events.append((stage, self._device.event()))

    def step_done(self) -> None:
        event = self._device.event()
        self._events.append(("step" if self._fine else "coarse", event))
        self._boundaries.append(event)
        self._count += 1
        self._fine = self._count % self._every == 0
        if len(self._boundaries) > _FOLD_EVERY + _AHEAD:
            self._fold()

    def _fold(self) -> None:
        """Reads all but the latest steps and forgets their events."""
        last = self._boundaries[-1 - _AHEAD]
        last.synchronize()
        upto = next(index for index, (_, event) in enumerate(self._events) if event is last) + 1
        self._read(self._events[:upto])
        del self._events[:upto], self._boundaries[:-_AHEAD]

    def elapsed(self) -> float:
        """Seconds since ``start``; waits where the host is more than a few steps ahead of the device,
        so that who ends a block by time does not end it with a long queue."""
        if len(self._boundaries) > _AHEAD:
            self._boundaries[-1 - _AHEAD].synchronize()
        return perf_counter() - self._began

    def stop(self) -> Lap:
        self._device.synchronize()
        seconds = perf_counter() - self._began
        self._read(self._events)
        self._events, self._boundaries = [], []
        totals, steps = self._totals, self._steps
        split = sum(totals.values())
        if split > 0:
            totals = {stage: value * seconds / split for stage, value in totals.items()}
        if steps:
            self._every = max(1, round(self._fine_above / max(seconds / len(steps), 1e-6)))
        return Lap(seconds, totals, steps)

    def _read(self, events: list[tuple[str, Any]]) -> None:
        """Adds what lies between events, all of them passed by the device, to the totals."""
        for stage, event in events:
            if stage in ("step", "coarse"):
                if stage == "step":
                    self._totals["other"] += self._mark.elapsed_time(event) / 1e3
                self._steps.append(self._step_mark.elapsed_time(event) / 1e3)
                self._step_mark = event
            else:
                self._totals[stage] += self._mark.elapsed_time(event) / 1e3
            self._mark = event


def recording() -> bool:
    """Whether what is issued now goes into a CUDA graph and is not run."""
    begun: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return begun and torch.cuda.is_current_stream_capturing()


def clock_for(device: Device) -> StageClock:
    return EventClock(device) if device.timed_by_events else StageClock()
