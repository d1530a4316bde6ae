"""Exposed seconds of each stage of a step: by the host's clock on the CPU, by stream events on CUDA."""

from __future__ import annotations

import random
from dataclasses import dataclass
from operator import sub
from time import perf_counter
from typing import Any

import torch

from autoopt.benchmark.device import Device

STAGES = ("data", "copy", "forward", "backward", "optimizer", "whole", "evaluate", "other")
"""``data``: waiting for the next batch; ``optimizer`` includes unscaling, clipping and the scheduler; ``whole``: what
a step that a plan has wrapped does not tell apart."""

BETWEEN = frozenset({"data", "copy", "evaluate"})
"""Stages before and after what a step computes; the CPU's clock reads them in every step."""

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

    The end of every step is read, and every wait for data, which comes in bursts. The stages within short
    steps are read in some of them only, at distances drawn by lot (what repeats every so many steps would
    else be met always, or never); their shares stand for all.

    Args:
        fine_above: steps longer than this are all split, seconds; shorter ones in proportion.

    Attributes:
        fine: whether the step under way is split: only then need ``mark`` be called within it.
        every: one step in so many is split.
        began: when ``start`` was called, by ``perf_counter``.
    """

    def __init__(self, fine_above: float = 0.02) -> None:
        self._fine_above = fine_above
        self._lot = random.Random(0)
        self.every = 1
        self.start()

    def start(self) -> None:
        self._totals = dict.fromkeys(STAGES, 0.0)
        self._unsplit = 0.0
        self._steps: list[float] = []
        self.fine, self._until_fine = True, self._distance()
        self.began = self._last = self._step_began = perf_counter()

    def mark(self, stage: str) -> None:
        """The stage that ends here."""
        if self.fine or stage in BETWEEN:
            now = perf_counter()
            self._totals[stage] += now - self._last
            self._last = now

    def step_done(self) -> None:
        """The step that ends here; what no stage has claimed is ``other``."""
        now = perf_counter()
        if self.fine:
            self._totals["other"] += now - self._last
        else:
            self._unsplit += now - self._last
        self._steps.append(now - self._step_began)
        self._last = self._step_began = now
        self._until_fine -= 1
        self.fine = False
        if self._until_fine == 0:
            self._split_next()

    @property
    def coarse(self) -> int:
        """Steps before the next one that is split."""
        return 0 if self.fine else self._until_fine

    def split(self, arrived: float) -> None:
        """A step is split whose batch had come then; the times of who calls this go to ``passed`` later."""
        self.fine, self._last = True, arrived
        self._unsplit += arrived

    def split_done(self, end: float) -> int:
        """It ended; the steps to the next one that is split."""
        self._totals["other"] += end - self._last
        self._unsplit -= end
        self.fine = False
        return self._distance()

    def passed(self, arrivals: list[float], ends: list[float], left: int) -> None:
        """Some steps at once, in place of ``mark("data")`` and ``step_done`` for each.

        Args:
            arrivals: when the batch of each had come, by ``perf_counter``.
            ends: when each ended.
            left: steps before the next one that is split.
        """
        begins = [self._step_began, *ends[:-1]]
        self._totals["data"] += sum(map(sub, arrivals, begins))
        self._unsplit += sum(map(sub, ends, arrivals))
        self._steps += map(sub, ends, begins)
        self._last = self._step_began = ends[-1] if ends else self._step_began
        self.fine, self._until_fine = left <= 0, left
        if self.fine:
            self._split_next()

    def _split_next(self) -> None:
        self.fine, self._until_fine = True, self._distance()

    def _distance(self) -> int:
        """Steps to the next one that is split; ``every`` on average."""
        return 1 + int(self._lot.random() * (2 * self.every - 1)) if self.every > 1 else 1

    def elapsed(self) -> float:
        """Seconds since ``start``."""
        return perf_counter() - self.began

    def stop(self) -> Lap:
        self.fine = True
        self.mark("other")
        seconds = self._last - self.began
        within = [stage for stage in STAGES if stage not in BETWEEN]
        split = sum(self._totals[stage] for stage in within)
        for stage in within if split > 0 else ():
            self._totals[stage] *= (split + self._unsplit) / split
        self._set_every(seconds)
        return Lap(seconds, self._totals, self._steps)

    def _set_every(self, seconds: float) -> None:
        if self._steps:
            self.every = max(1, round(self._fine_above / max(seconds / len(self._steps), 1e-6)))


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
        super().__init__(fine_above)

    def start(self) -> None:
        self._device.synchronize()
        super().start()
        self._mark = self._step_mark = self._device.event()
        self._events: list[tuple[str, Any]] = []
        self._boundaries: list[Any] = []

    def mark(self, stage: str) -> None:
        # an event within a graph that is being recorded is a node of it, and has no time
        if self.fine and not recording():
            self._events.append((stage, self._device.event()))

    def step_done(self) -> None:
        event = self._device.event()
        self._events.append(("step" if self.fine else "coarse", event))
        self._boundaries.append(event)
        self._until_fine -= 1
        self.fine = False
        if self._until_fine == 0:
            self._split_next()
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
        return perf_counter() - self.began

    def stop(self) -> Lap:
        self._device.synchronize()
        seconds = perf_counter() - self.began
        self._read(self._events)
        self._events, self._boundaries = [], []
        totals, steps = self._totals, self._steps
        split = sum(totals.values())
        if split > 0:
            totals = {stage: value * seconds / split for stage, value in totals.items()}
        self._set_every(seconds)
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
