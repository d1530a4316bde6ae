"""Measurements of several processes of one training as one: time is the slowest one's, samples are those of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.distributed.group import Group
from autoopt.records.messages import Block

Losses = Sequence[float | None]


def mean_losses(ranks: Sequence[Losses]) -> tuple[float | None, ...]:
    """The loss of each step: the mean over the processes, whose losses are weighted; None where one is not finite."""
    return tuple(
        None if any(loss is None for loss in step) else fmean(loss for loss in step if loss is not None)
        for step in zip(*ranks, strict=True)
    )


def slowest_steps(ranks: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Seconds of each step in the process in which it took longest."""
    return tuple(max(step) for step in zip(*ranks, strict=True))


def merged(blocks: Sequence[Block]) -> Block:
    """One block of the training, from each process's own. Stages are those of the process that took longest."""
    if len(blocks) == 1:
        return blocks[0]
    slowest = max(blocks, key=lambda block: block.seconds)
    own = [block.cpu_seconds or 0.0 for block in blocks]
    busy = [
        block.foreign_cpu_seconds + used
        for block, used in zip(blocks, own, strict=True)
        if block.foreign_cpu_seconds is not None
    ]
    return slowest.model_copy(
        update={
            "samples": total([block.samples for block in blocks]),
            "step_seconds": slowest_steps([block.step_seconds for block in blocks]),
            "losses": mean_losses([block.losses for block in blocks]),
            "cpu_seconds": sum(own),
            "foreign_cpu_seconds": max(max(busy) - sum(own), 0.0) if busy else None,
            "peak_memory_bytes": most([block.peak_memory_bytes for block in blocks]),
            "allocated_memory_bytes": most([block.allocated_memory_bytes for block in blocks]),
            "peak_host_memory_bytes": total([block.peak_host_memory_bytes for block in blocks]),
            "allocation_retries": sum(block.allocation_retries for block in blocks),
            "recompilations": max(block.recompilations for block in blocks),
            "late_seconds": max(block.late_seconds for block in blocks),
        }
    )


def most(values: Sequence[int | None]) -> int | None:
    """The largest that is known; a device's peak counts for each device by itself."""
    return max((value for value in values if value is not None), default=None)


def total(values: Sequence[int | None]) -> int | None:
    """The sum; None where one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def without_waiting(lap: Lap, away: Sequence[float], group: Group) -> Lap:
    """This process's lap without the time in which it waited for another one that evaluated or saved.

    All processes meet in every step: where one is away for a second, the others wait in a message as long.

    Args:
        lap: of this process; its own evaluations and checkpoints are no part of it.
        away: seconds before the end of each step in which this process evaluated, saved or was looked at; empty where
            it did neither by itself.
    """
    if group.size == 1 or not away:
        return lap
    longest = [max(step) for step in zip(*group.gather(tuple(away)), strict=False)]
    waited = [whole - own for whole, own in zip(longest, away, strict=False)]
    steps = [max(step - wait, 0.0) for step, wait in zip(lap.steps, waited, strict=False)]
    left = sum(waited)
    stages = dict(lap.stages)
    for stage in ("backward", "optimizer", "forward", "other", "data"):  # where messages wait, as a rule
        taken = min(left, stages.get(stage, 0.0))
        left -= taken
        if taken:
            stages[stage] -= taken
    return replace(lap, seconds=max(lap.seconds - sum(waited), 0.0), stages=stages, steps=steps)
