"""The running system with the machine's pace read between its steps."""

from __future__ import annotations

import functools
import statistics
import time
from typing import Any

from autoopt.benchmark.blocks import run_block
from autoopt.benchmark.training import Training
from autoopt.records.messages import Block
from autoopt.simplify.pace import FRESH, Pace

BESIDE_WORKERS = 0.25
"""Seconds between readings where workers go on meanwhile: the time that reading takes is not theirs."""


def running_block(
    training: Training, seconds: float, min_steps: int, ramp_seconds: float = 0.0, pace: Pace | None = None
) -> tuple[Block, float | None]:
    """A block of steps and their mean pace; None on a device and for compiled steps, which are not paced.

    Args:
        training: goes on from where it stands.
        seconds: at least so long.
        min_steps: and at least so many steps.
        ramp_seconds: trained first, unmeasured.
        pace: read between steps; its own seconds are in none of the block's.
    """
    if training.device.kind != "cpu" or training.setup.compile is not None:
        plain = run_block(training, lambda n, s: n >= min_steps and s >= seconds, ramp_seconds=ramp_seconds)
        return plain, None
    pace = pace or Pace(fresh=BESIDE_WORKERS if training.loader.loader.num_workers else FRESH)
    paces = [pace.now()]
    spent: list[float] = []
    total = 0.0

    def enough(done: int, elapsed: float) -> bool:
        nonlocal total
        if done >= min_steps and elapsed - total >= seconds:
            return True
        start = time.perf_counter()
        paces.append(pace.now())
        spent.append(time.perf_counter() - start)
        total += spent[-1]
        return False

    block = run_block(training, enough, ramp_seconds=ramp_seconds)
    return without(block, spent), statistics.fmean(paces)


def without(block: Block, spent: list[float]) -> Block:
    """A block without the seconds after each of its steps but the last that were not training."""
    total = sum(spent)
    stages = dict(block.stage_seconds)
    if "data" in stages:  # what follows a step is the next one's wait for data
        stages["data"] = max(0.0, stages["data"] - total)
    steps = [max(0.0, step - extra) for step, extra in zip(block.step_seconds, (0.0, *spent), strict=False)]
    return block.model_copy(
        update={"seconds": block.seconds - total, "stage_seconds": stages, "step_seconds": tuple(steps)}
    )


def whole(*parts: tuple[Block, float | None]) -> tuple[Block, float | None]:
    """Blocks as one, and the pace of its mean step; None where one of them was not paced."""
    block = functools.reduce(joined, (part for part, _ in parts))
    paces = [pace for _, pace in parts if pace is not None]
    if len(paces) < len(parts):
        return block, None
    weights = [part.steps for part, _ in parts]
    return block, sum(pace * steps for pace, steps in zip(paces, weights, strict=True)) / max(sum(weights), 1)


def joined(first: Block, second: Block) -> Block:
    """Two blocks as one; memory is the first's, since stubs lay between them."""
    stages = {**first.stage_seconds}
    for name, seconds in second.stage_seconds.items():
        stages[name] = stages.get(name, 0.0) + seconds
    more: dict[str, Any] = {
        name: getattr(first, name) + getattr(second, name)
        for name in ("steps", "samples", "seconds", "step_seconds", "losses", "allocation_retries", "recompilations",
                     "late_seconds")
    }  # fmt: skip
    for name in ("cpu_seconds", "foreign_cpu_seconds"):
        both = (getattr(first, name), getattr(second, name))
        more[name] = None if None in both else sum(both)
    return first.model_copy(update={**more, "stage_seconds": stages})
