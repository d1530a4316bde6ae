"""Costs that are paid once but late: compiling again and cuDNN's searches, after steps were steady already.

``torch.compile`` compiles a graph when it meets a shape that the last one does not fit, cuDNN searches an algorithm
for each new shape where it is told to. Both take seconds of one step, whenever that shape first comes: what a real
run pays once is no part of its steady step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.compiling import compilations
from autoopt.benchmark.contents import shape_of, tensors

_FOLLOWING = 2
"""CUDA graphs of what was compiled are warmed up and recorded in the steps after."""
_SLOW = 2.0
"""A step that was not so many times a usual one has paid for nothing."""


class DeferredCost:
    """Notes the steps in which something was compiled or searched.

    Args:
        searches: whether a new shape starts a search.
        compiles: whether the setup compiles; what the user compiles is seen by its first graph.
        count: graphs that were compiled so far.

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
        """A lap without what its steps paid once, and how many seconds that were."""
        times = settled(lap.steps, self._paid)
        seconds = sum(lap.steps) - sum(times)
        if seconds <= 0:
            return lap, 0.0
        longest = max(lap.stages, key=lambda stage: lap.stages[stage])
        stages = {**lap.stages, longest: max(lap.stages[longest] - seconds, 0.0)}
        return Lap(max(lap.seconds - seconds, sum(times)), stages, times), seconds


def deferred_cost_for(device: torch.device, compiles: bool) -> DeferredCost:
    """The causes to be watched on a device, with the flags of this process as they are."""
    return DeferredCost(searches=device.type == "cuda" and torch.backends.cudnn.benchmark, compiles=compiles)


def settled(times: Sequence[float], paid: Sequence[int]) -> list[float]:
    """Step times without what some steps paid once: a step that did takes as long as a usual one.

    Args:
        times: seconds of each step.
        paid: indices of steps that compiled or searched.
    """
    others = [seconds for step, seconds in enumerate(times) if step not in set(paid)]
    if not others:  # too short a lap to know a usual step
        return list(times)
    usual = median(others)
    after = {step + more for step in paid for more in range(_FOLLOWING + 1)}
    return [usual if step in after and x > _SLOW * usual else x for step, x in enumerate(times)]
