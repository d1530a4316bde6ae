"""The fast path of short steps: one frame around steps of one batch that needs no moving, accounted for afterwards.

A step of a millisecond sweeps the processor's caches, so that whatever is called beside it costs microseconds: some
in every step, some twenty for what comes once in fifteen. So each step is two readings of the time and its loss, and
what can be summed up afterwards is summed up at the epoch's end: times, samples, the place in the data.
"""

from __future__ import annotations

from operator import sub
from time import perf_counter
from typing import Any

from autoopt.benchmark.batch_iterator import BatchIterator
from autoopt.benchmark.clock import StageClock
from autoopt.benchmark.contents import added, samples_of
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.loss_recorder import LossRecorder


class FastPath:
    """Trains to the end of an epoch in place of ``Training.next`` and ``Training.advance``.

    Args:
        training: what is trained; its clock has been started.
        enough: asked after each step.
        recorder: gets the losses.
    """

    def __init__(self, training: Any, enough: Enough, recorder: LossRecorder) -> None:
        self._training, self._enough, self._recorder = training, enough, recorder
        self._clock: StageClock = training.clock
        self._batches: BatchIterator = training.batch_iterator

    def available(self) -> bool:
        """Whether the next steps may go this way: each batch is a step's, is where it belongs, and has a known size."""
        batches = self._batches
        if not (self._training.fast and batches.single and batches.sizes_hold):
            return False
        batches.open()
        return batches.sizes is not None

    def train(self, done: int) -> tuple[int, bool]:
        """Trains to the end of the epoch, or until it is enough.

        Args:
            done: steps of the lap so far.

        Returns:
            The steps of the lap after it, and whether it is enough.
        """
        training, clock, enough = self._training, self._clock, self._enough
        step, schedule, deferred = training.one_step, training.schedule, training.deferred_cost
        scheduled, watching, began = not schedule.idle, deferred.watching, clock.began
        arrivals: list[float] = []
        ends: list[float] = []
        losses: list[Any] = []
        split = done if clock.fine else done + clock.until_fine
        over, further = False, 0
        try:
            for batch in self._batches.open():
                arrived = perf_counter()
                arrivals.append(arrived)
                if done == split:
                    clock.fine, clock.last = True, arrived
                    loss = training.compute([batch])
                    end = perf_counter()
                    split += self._split_done(arrived, end)
                    further = self._further_samples(batch, len(ends))
                else:
                    loss = step([batch])
                    if scheduled:
                        schedule.step()
                    end = perf_counter()
                ends.append(end)
                losses.append(loss.tolist())
                if watching:
                    deferred.note([batch])
                done += 1
                over = enough(done, end - began)
                if over or further:
                    break
            else:
                self._batches.ended(len(arrivals))
        finally:
            self._account(arrivals, ends, split - done, further)
            self._recorder.extend(losses)
        return done, over

    def _split_done(self, arrived: float, end: float) -> int:
        """A step that was split has ended; the steps to the next one that is split."""
        clock = self._clock
        clock.totals["other"] += end - clock.last
        clock.unsplit -= end - arrived  # where all steps of the epoch are added
        clock.fine = False
        return clock.distance()

    def _further_samples(self, batch: Any, further: int) -> int:
        """Samples of a batch, so many further on, over those that the loader tells: below 0 where some are left out."""
        sizes = self._batches.sizes
        assert sizes is not None
        told = sizes.of(self._batches.batch + further)
        return min((samples_of(batch) or told) - told, 0)

    def _account(self, arrivals: list[float], ends: list[float], left: int, further: int) -> None:
        """Books the steps of an epoch at once, in place of ``mark("data")`` and ``step_done`` for each.

        Args:
            arrivals: when the batch of each had come, by ``perf_counter``; one more where a step failed.
            ends: when each ended.
            left: steps before the next one that the clock splits.
            further: samples of the last batch beyond those that the loader told.
        """
        training, batches, clock = self._training, self._batches, self._clock
        sizes, first = batches.sizes, batches.batch
        assert sizes is not None
        training.steps += len(ends)
        training.samples = added(training.samples, sizes.of_first(first + len(ends)) - sizes.of_first(first) + further)
        batches.batch += len(arrivals)
        if further:
            batches.size_mismatch()
        begins = [clock.step_began, *ends[:-1]]
        clock.totals["data"] += sum(map(sub, arrivals, begins))
        clock.unsplit += sum(map(sub, ends, arrivals))
        clock.steps += map(sub, ends, begins)
        clock.last = clock.step_began = ends[-1] if ends else clock.step_began
        clock.fine, clock.until_fine = left <= 0, left
        if clock.fine:
            clock.split_next()
