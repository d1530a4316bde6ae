"""Exposed seconds of each stage of a step: by the host's clock on the CPU, by stream events on CUDA.

Costs that are paid once but late are distinguished: ``torch.compile`` compiles a graph when it meets a shape that the
last one does not fit, and cuDNN searches an algorithm for each new shape where it may. Both take seconds of one
step, whenever that shape first comes: what a real run pays once is no part of its steady step."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from statistics import median
from time import perf_counter
from typing import Any

import torch

from autoopt.benchmark.compiling import compilations
from autoopt.benchmark.contents import shape_of, tensors
from autoopt.benchmark.device import Device

STAGES = ("data", "copy", "forward", "backward", "optimizer", "whole", "evaluate", "other")
"""``data``: waiting for the next batch; ``optimizer`` includes unscaling, clipping and the scheduler; ``whole``: what
a step that a plan has wrapped does not distinguish."""

BETWEEN = frozenset({"data", "copy", "evaluate"})
"""Stages before and after what a step computes; the CPU's clock reads them in every step."""

_AHEAD = 4
"""Steps that the host may be ahead of the device: enough that it never waits, few enough to wait for."""


@dataclass
class Lap:
    """The lap of a clock from ``start`` to ``stop``. Seconds."""

    seconds: float
    stages: dict[str, float]
    steps: list[float]


def with_epochs(stages: dict[str, float], opening: float) -> dict[str, float]:
    """Seconds by stage, with epochs' starts, which took ``opening`` seconds of the wait for data, as a stage."""
    opening = min(opening, stages.get("data", 0.0))
    return {**stages, "data": stages["data"] - opening, "epoch": opening} if opening > 0 else stages


class StageClock:
    """Attributes the time since the last mark to the stage that ends now. For the CPU.

    The end of every step is read, and every wait for data, which comes in bursts. The stages within short
    steps are read in some of them only, at distances drawn at random (what repeats every so many steps would
    else be met always, or never); their shares stand for all.

    Attributes:
        fine_above: steps longer than this are all split, seconds; shorter ones in proportion.
        fine: whether the step under way is split: only then need ``mark`` be called within it.
        began, last, step_began: when ``start`` was called, the last stage ended, the step under way began, by
            ``perf_counter``.
        totals, unsplit, steps: seconds by stage, those of steps that were not split, those of each step.
    """

    fine_above = 0.02

    def __init__(self) -> None:
        self._lot = random.Random(0)
        self.every = 1
        self.start()

    def start(self) -> None:
        self.totals = dict.fromkeys(STAGES, 0.0)
        self.unsplit = 0.0
        self.steps: list[float] = []
        self.split_next()
        self.began = self.last = self.step_began = perf_counter()

    def mark(self, stage: str) -> None:
        if self.fine or stage in BETWEEN:
            now = perf_counter()
            self.totals[stage] += now - self.last
            self.last = now

    def set_aside(self) -> float:
        """Keeps the time since the last mark from the stage that ends next; its seconds, for who counts them."""
        now = perf_counter()
        gone, self.last = now - self.last, now
        return gone

    def step_done(self) -> None:
        """The step that ends here; what no stage has claimed is ``other``."""
        now = perf_counter()
        if self.fine:
            self.totals["other"] += now - self.last
        else:
            self.unsplit += now - self.last
        self.steps.append(now - self.step_began)
        self.last = self.step_began = now
        self._next_step()

    def _next_step(self) -> None:
        self.until_fine -= 1
        self.fine = False
        if self.until_fine == 0:
            self.split_next()

    def split_next(self) -> None:
        """The step that begins is split, and the next one ``every`` steps later on average."""
        self.fine = True
        self.until_fine: int = 1 + int(self._lot.random() * (2 * self.every - 1)) if self.every > 1 else 1

    def elapsed(self) -> float:
        """Seconds since ``start``."""
        return perf_counter() - self.began

    def stop(self) -> Lap:
        self.fine = True
        self.mark("other")
        seconds = self.last - self.began
        within = [stage for stage in STAGES if stage not in BETWEEN]
        split = sum(self.totals[stage] for stage in within)
        for stage in within if split > 0 else ():
            self.totals[stage] *= (split + self.unsplit) / split
        return self._lap(seconds, self.totals)

    def _lap(self, seconds: float, stages: dict[str, float]) -> Lap:
        """The lap, after which steps are split by how long its own were."""
        if self.steps:
            self.every = max(1, round(self.fine_above / max(seconds / len(self.steps), 1e-6)))
        return Lap(seconds, stages, self.steps)


class EventClock(StageClock):
    """The same by events on the device's stream, with one synchronization in ``stop``.

    Between two events lies the device's work, or its idle time where the host was late: just what the
    stage exposes. Events cost the host some microseconds, so that in short steps only some steps are
    split into stages; their shares stand for all.
    """

    fine_above = 0.004

    def __init__(self, device: Device) -> None:
        self._device: Any = device
        super().__init__()

    def start(self) -> None:
        self._device.synchronize()
        super().start()
        self._mark = self._step_mark = self._device.event()
        self._events: list[tuple[str, Any]] = []
        self._boundaries: list[Any] = []

    def mark(self, stage: str) -> None:
        # an event within a graph that is being recorded is a node of it, and has no time
        if self.fine and not (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()):  # type: ignore[no-untyped-call]
            self._events.append((stage, self._device.event()))

    def set_aside(self) -> float:
        self.mark("other")  # events tell; nothing is left to be counted
        return 0.0

    def step_done(self) -> None:
        event = self._device.event()
        self._events.append(("step" if self.fine else "coarse", event))
        self._boundaries.append(event)
        self._next_step()
        # a run of days does not keep all of them
        if len(self._boundaries) > 256 + _AHEAD:  # reads and forgets all but the latest
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
        split = sum(self.totals.values())
        whole = seconds / split if split > 0 else 1.0
        return self._lap(seconds, {stage: value * whole for stage, value in self.totals.items()})

    def _read(self, events: list[tuple[str, Any]]) -> None:
        """Adds what lies between events, all of them passed by the device, to the totals."""
        for stage, event in events:
            if stage in ("step", "coarse"):
                if stage == "step":
                    self.totals["other"] += self._mark.elapsed_time(event) / 1e3
                self.steps.append(self._step_mark.elapsed_time(event) / 1e3)
                self._step_mark = event
            else:
                self.totals[stage] += self._mark.elapsed_time(event) / 1e3
            self._mark = event


def clock_for(device: Device) -> StageClock:
    return EventClock(device) if device.timed_by_events else StageClock()


class DeferredCost:
    """Notes the steps in which something was compiled or searched.

    Args:
        compiles: whether the setup compiles; what the user compiles is seen by its first graph.

    Attributes:
        watching: whether anything may be paid late; only then need :meth:`note` be called.
    """

    def __init__(self, *, searches: bool, compiles: bool, count: Callable[[], int] = compilations) -> None:
        self._searches, self._compiles, self._count = searches, compiles, count
        self._shapes: set[tuple[Any, ...]] = set()
        self.begin()

    def begin(self) -> None:
        """Before the first step of a lap."""
        self._graphs = self._count()
        self.watching = self._searches or self._compiles or self._graphs > 0
        self._step = 0
        self._paid: list[int] = []

    def note(self, batches: list[Any]) -> None:
        """After each step, with the batches that it was trained on."""
        graphs = self._count()
        paid, self._graphs = graphs > self._graphs, graphs
        if self._searches:
            shapes = tuple(shape_of(tensor) for batch in batches for _, tensor in tensors(batch))
            paid = paid or shapes not in self._shapes
            self._shapes.add(shapes)
        if paid:
            self._paid.append(self._step)
        self._step += 1

    def settled(self, lap: Lap) -> tuple[Lap, float]:
        """A lap without what its steps paid once, and how many seconds that were.

        A step that compiled or searched takes as long as a usual one, unless too short a lap shows no usual one.
        """
        paid = set(self._paid)
        others = [seconds for step, seconds in enumerate(lap.steps) if step not in paid]
        usual = median(others) if others else inf
        # CUDA graphs of what was compiled are warmed up and recorded in the two steps after
        after = {step + more for step in paid for more in range(3)}
        # a step that was not twice as long as a usual one has paid for nothing
        times = [usual if step in after and x > 2.0 * usual else x for step, x in enumerate(lap.steps)]
        seconds = sum(lap.steps) - sum(times)
        if seconds <= 0:
            return lap, 0.0
        longest = max(lap.stages, key=lambda stage: lap.stages[stage])
        stages = {**lap.stages, longest: max(lap.stages[longest] - seconds, 0.0)}
        return Lap(max(lap.seconds - seconds, sum(times)), stages, times), seconds


def deferred_cost_for(device: torch.device, compiles: bool) -> DeferredCost:
    """The causes to be watched on a device, with the flags of this process as they are."""
    return DeferredCost(searches=device.type == "cuda" and torch.backends.cudnn.benchmark, compiles=compiles)
