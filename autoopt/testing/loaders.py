"""A simulated loader with worker processes that delivers in order, as ``torch.utils.data.DataLoader`` does.

Batch k is made by worker k mod W, begun when that worker is free and its slot was handed out (when batch
k - prefetch x W was taken). The training takes it at the later of its own time and the batch's, in order, and computes.
So an input-bound training takes W batches at a time: W - 1 steps take what computing takes, and one waits for all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class LoaderModel:
    """How a loader makes batches.

    Args:
        workers: processes.
        seconds: that a worker takes for a batch.
        jitter: standard deviation of the log of it, batch by batch.
        prefetch: batches that each worker holds ready.
    """

    workers: int
    seconds: float
    jitter: float = 0.0
    prefetch: int = 2


@dataclass
class _Made:
    begun: float
    seconds: float

    @property
    def done(self) -> float:
        return self.begun + self.seconds


class FakeLoader:
    """A loader at work.

    Args:
        model: how it makes batches.
        now: when it is started, seconds on the machine's clock.
        scatter: ``scatter(sd)`` draws the factor of a batch's seconds.
    """

    def __init__(self, model: LoaderModel, now: float, scatter: Callable[[float], float]) -> None:
        self._model, self._scatter = model, scatter
        self._made: list[_Made] = []
        self._taken = 0
        for _ in range(model.workers * model.prefetch):
            self._hand_out(now)

    def _hand_out(self, now: float) -> None:
        workers = self._model.workers
        free = self._made[-workers].done if len(self._made) >= workers else now
        self._made.append(_Made(max(free, now), self._model.seconds * self._scatter(self._model.jitter)))

    def take(self, now: float) -> float:
        """Takes the next batch: when it is there, at ``now`` or later."""
        there = max(now, self._made[self._taken].done)
        self._taken += 1
        self._hand_out(there)
        return there

    def stopped(self, since: float, now: float) -> None:
        """All workers were stopped from ``since`` until ``now``; what they wait for arrives in the meantime."""
        workers = self._model.workers
        for place in range(self._taken, len(self._made)):
            made = self._made[place]
            free = self._made[place - workers].done if place >= workers else 0.0
            if made.begun >= since:
                made.begun = max(now, free, made.begun)
