"""Sums up one side of a comparison over its blocks and processes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from autoopt.records import Percentiles, Plan
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.comparison import LossPath, Side

_PATHS = 2


def percentiles(seconds: list[float]) -> Percentiles | None:
    """p50, p95 and p99 of step times in seconds, or None without any."""
    if not seconds:
        return None
    p50, p95, p99 = (float(q) for q in np.percentile(seconds, (50, 95, 99)))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def _most(old: int | None, new: int | None) -> int | None:
    return max((value for value in (old, new) if value is not None), default=None)


def _of_a_step(counts: list[int | None], steps: int) -> float | None:
    known = [count for count in counts if count is not None]
    return sum(known) / steps if steps and len(known) == len(counts) else None


@dataclass
class SideStatistics:
    """One side while it is measured."""

    plan: Plan
    blocks: list[Block] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    paths: list[dict[int, float | None]] = field(default_factory=list)
    fixed_seconds: list[float] = field(default_factory=list)
    evaluated_samples: int | None = None

    def started(self, startup: Startup) -> None:
        self.startups.append(startup)
        self.fixed_seconds.append(startup.fixed_seconds)
        self.paths.append(dict(enumerate(startup.losses, start=startup.first_step)))

    def ran(self, block: Block) -> None:
        self.blocks.append(block)
        if self.fixed_seconds:
            self.fixed_seconds[-1] += block.late_seconds
        if 0 < len(self.paths) <= _PATHS:  # later processes train the same again: two show what repeats
            self.paths[-1].update(enumerate(block.losses, start=block.first_step))

    @property
    def broke(self) -> bool:
        """Whether a loss of the latest block was not finite."""
        return bool(self.blocks) and any(loss is None for loss in self.blocks[-1].losses)

    def forget(self, count: int) -> None:
        """Takes the latest blocks out again."""
        del self.blocks[len(self.blocks) - count :]

    @property
    def step_seconds(self) -> float | None:
        """Mean seconds of a step in the latest block; before the first, in the warm-up."""
        if self.blocks:
            return self.blocks[-1].seconds / max(self.blocks[-1].steps, 1)
        if self.startups and self.startups[-1].warmup_steps:
            return self.startups[-1].warmup_seconds / self.startups[-1].warmup_steps
        return None

    def side(self) -> Side:
        blocks = self.blocks
        steps = sum(block.steps for block in blocks)
        seconds = sum(block.seconds for block in blocks)
        counts = [block.samples for block in blocks]
        samples = sum(count for count in counts if count) if all(counts) else 0
        stages = {name for block in blocks for name in block.stage_seconds}
        device, held, host = None, None, None
        for block in blocks:
            device, host = _most(device, block.peak_memory_bytes), _most(host, block.peak_host_memory_bytes)
            held = _most(held, block.allocated_memory_bytes)
        return Side(
            plan=self.plan,
            samples_per_second=samples / seconds if samples else None,
            samples_per_step=samples / steps if samples else None,
            steps_per_second=steps / seconds if steps else None,
            step_seconds=percentiles([s for block in blocks for s in block.step_seconds]),
            block_step_seconds=tuple(block.seconds / max(block.steps, 1) for block in blocks),
            stage_seconds={n: sum(b.stage_seconds.get(n, 0.0) for b in blocks) / steps for n in sorted(stages)}
            if steps
            else {},
            startup=self.startups[0] if self.startups else None,
            fixed_seconds=tuple(self.fixed_seconds),
            losses=self._path(0),
            losses_again=self._path(1),
            peak_memory_bytes=device,
            allocated_memory_bytes=held,
            peak_host_memory_bytes=host,
            allocation_retries=sum(block.allocation_retries for block in blocks),
            recompilations=sum(block.recompilations for block in blocks),
            evaluated_samples=self.evaluated_samples,
            page_faults=_of_a_step([block.page_faults for block in blocks], steps),
            blocks=len(blocks),
            seconds=seconds,
        )

    def _path(self, index: int) -> LossPath:
        path = self.paths[index] if index < len(self.paths) else {}
        steps = sorted(path)
        return LossPath(steps=tuple(steps), losses=tuple(path[step] for step in steps))
