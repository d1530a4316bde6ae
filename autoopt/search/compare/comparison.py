"""The documents of a comparison (what was asked, what was seen, what follows), and the sums of one side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeVar

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Percentiles, Plan, Record
from autoopt.records.account import Row
from autoopt.records.messages import Block, Startup

SideName = Literal["incumbent", "candidate"]


class Decision(StrEnum):
    """Decision on throughput alone. ``accept``: the gain is confirmed; quality is another question."""

    ACCEPT = "accept"
    REJECT = "reject"
    HARMFUL = "harmful"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"


class Rule(Record):
    """When a comparison ends.

    Args:
        min_gain: the gain worth having (0.01: one per cent).
        max_seconds: wall-clock seconds for the whole comparison, starts of processes included.
        more_seconds: in addition where, as it stands, the candidate looks worth keeping.
        min_pairs, max_pairs: pairs of processes; fewer than ``min_pairs`` never accept.
        block_seconds: the shortest block; a block holds ``min_steps`` steps at least.
        ramp_seconds: trained after each thaw and not measured.
        warm_up_seconds: the most that either side may take to become steady.
        alpha: 1 less the confidence of the reported interval, which holds at all times: what is kept clears
            ``min_gain`` with all of it.
        alpha_accept: the same for keeping it, where many candidates of a run share one budget of errors
            (:func:`autoopt.search.compare.sequential_test.alpha_of`); ``alpha`` where None.
        alpha_reject: the same for ``no gain``, where an error costs a missed gain and no untruth.
        until_error: goes on, undecided or not, until the half-width of the interval (log) is below
            this (verification and ablation want a figure, not a verdict).
    """

    min_gain: float = 0.01
    max_seconds: float = 120.0
    more_seconds: float = 0.0
    min_pairs: int = 2
    max_pairs: int = 12
    block_seconds: float = 0.2
    min_steps: int = 3
    ramp_seconds: float = 0.05
    warm_up_seconds: float = 60.0
    alpha: float = 0.05
    alpha_accept: float | None = None
    alpha_reject: float = 0.2
    until_error: float | None = None


Mode = Literal["interleaved", "alternating", "switched"]
"""How the two sides of a comparison take turns."""


class LossPath(Record):
    """Losses by step from the first step on, None where not finite; a step whose loss was not captured is left out."""

    steps: tuple[int, ...] = ()
    losses: tuple[float | None, ...] = ()

    @staticmethod
    def of(losses: Sequence[float | None], first: int = 0) -> LossPath:
        """Losses of all steps from the first one on."""
        return LossPath(steps=tuple(range(first, first + len(losses))), losses=tuple(losses))

    @property
    def not_finite(self) -> int | None:
        """The first step whose loss was not finite."""
        return next((step for step, loss in zip(self.steps, self.losses, strict=True) if loss is None), None)


class Side(Record):
    """One arm over all its processes. Rates: totals over total seconds. Sizes in bytes. ``samples_per_second`` and
    ``samples_per_step`` are None where samples cannot be counted: a step is the unit then.

    ``page_faults``: minor faults of a step, the mean of all blocks; ``foreign_cores``: that other programs used during
    them. None where the system does not count them.
    """

    plan: Plan = Plan()
    samples_per_second: float | None = None
    samples_per_step: float | None = None
    steps_per_second: float | None = None
    step_seconds: Percentiles | None = None
    block_step_seconds: tuple[float, ...] = ()
    stage_seconds: dict[str, float] = field(default_factory=dict)
    startup: Startup | None = None
    fixed_seconds: tuple[float, ...] = ()
    losses: LossPath = LossPath()
    losses_again: LossPath = LossPath()
    peak_memory_bytes: int | None = None
    allocated_memory_bytes: int | None = None
    peak_host_memory_bytes: int | None = None
    allocation_retries: int = 0
    recompilations: int = 0
    page_faults: float | None = None
    foreign_cores: float | None = None
    blocks: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float | None:
        """Samples per second; steps, where samples cannot be counted."""
        return self.steps_per_second if self.samples_per_second is None else self.samples_per_second

    @property
    def per_step(self) -> float | None:
        """Of a step, in the unit of :attr:`rate`; None where nothing was measured."""
        if self.samples_per_second is None and self.steps_per_second is not None:
            return 1.0
        return self.samples_per_step


def percentiles(seconds: list[float]) -> Percentiles | None:
    """p50, p95 and p99 of step times in seconds, or None without any."""
    if not seconds:
        return None
    p50, p95, p99 = (float(q) for q in np.percentile(seconds, (50, 95, 99)))
    return Percentiles(p50=p50, p95=p95, p99=p99)


def most(values: Iterable[int | None]) -> int | None:
    """The largest that is known; None where none is."""
    return max((value for value in values if value is not None), default=None)


T = TypeVar("T", int, float)


def total(counts: Iterable[T | None]) -> T | None:
    """The sum; None where one of them is not known."""
    found = list(counts)
    known = [count for count in found if count is not None]
    return sum(known) if len(known) == len(found) else None


def _per(counts: Iterable[float | None], unit: float) -> float | None:
    counted = total(counts)
    return None if counted is None or not unit else counted / unit


@dataclass
class SideStatistics:
    """One side while it is measured."""

    plan: Plan
    blocks: list[Block] = field(default_factory=list)
    startups: list[Startup] = field(default_factory=list)
    paths: list[dict[int, float | None]] = field(default_factory=list)
    fixed_seconds: list[float] = field(default_factory=list)

    def started(self, startup: Startup) -> None:
        self.startups.append(startup)
        self.fixed_seconds.append(startup.fixed_seconds)
        self.paths.append(dict(enumerate(startup.losses, start=startup.first_step)))

    def ran(self, block: Block) -> None:
        self.blocks.append(block)
        if self.fixed_seconds:
            self.fixed_seconds[-1] += block.late_seconds
        if 0 < len(self.paths) <= 2:  # later processes train the same again: two show what repeats
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
        samples = total(block.samples or None for block in blocks)
        stages = {name for block in blocks for name in block.stage_seconds}
        return Side(
            plan=self.plan,
            samples_per_second=samples / seconds if samples else None,
            samples_per_step=samples / steps if samples else None,
            steps_per_second=steps / seconds if steps else None,
            step_seconds=percentiles([s for block in blocks for s in block.step_seconds]),
            block_step_seconds=tuple(block.seconds / max(block.steps, 1) for block in blocks),
            stage_seconds={n: sum(b.stage_seconds.get(n, 0.0) for b in blocks) / (steps or 1) for n in sorted(stages)},
            startup=self.startups[0] if self.startups else None,
            fixed_seconds=tuple(self.fixed_seconds),
            losses=self._path(0),
            losses_again=self._path(1),
            peak_memory_bytes=most(block.peak_memory_bytes for block in blocks),
            allocated_memory_bytes=most(block.allocated_memory_bytes for block in blocks),
            peak_host_memory_bytes=most(block.peak_host_memory_bytes for block in blocks),
            allocation_retries=sum(block.allocation_retries for block in blocks),
            recompilations=sum(block.recompilations for block in blocks),
            page_faults=_per((block.page_faults for block in blocks), steps),
            foreign_cores=_per((block.foreign_cpu_seconds for block in blocks), seconds),
            blocks=len(blocks),
            seconds=seconds,
        )

    def _path(self, index: int) -> LossPath:
        path = self.paths[index] if index < len(self.paths) else {}
        steps = sorted(path)
        return LossPath(steps=tuple(steps), losses=tuple(path[step] for step in steps))


class PairOfProcesses(Record):
    """One pair of processes. ``log_ratio``: of total work over total seconds, candidate over incumbent.

    ``rounds``: those that count; ``block_sd``: how the same ratio of each scatters; ``disturbed``: rounds left out,
    since other programs used the processor.
    """

    log_ratio: float
    standard_error: float
    rounds: int
    block_sd: float | None = None
    disturbed: int = 0
    startup_seconds: float = 0.0
    seconds: float = 0.0


class SideFailure(Record):
    """How a side ended badly. ``kind``: one of ``TrialFailed.KINDS``."""

    side: SideName
    kind: str
    message: str
    where: str = ""
    detail: str = ""

    @property
    def reason(self) -> str:
        """As result.json holds it, such as ``out_of_memory: ...``."""
        return f"{self.kind}: {self.message}"

    @staticmethod
    def of(side: SideName, error: TrialFailed) -> SideFailure:
        return SideFailure(side=side, kind=error.kind, message=error.message, where=error.where, detail=error.detail)


class Comparison(Record):
    """Candidate against incumbent. ``estimate`` is of the ratio of speeds (samples per second, or steps where those are
    the unit), above 1 is faster.

    ``estimate`` holds at all times with its confidence, however often it was screened. ``rows``: the blocks that it is
    made of, apart from those of earlier pairs. ``seconds`` is wall-clock. ``mode``: ``interleaved`` with the idle side
    frozen, ``alternating`` where both do not fit in memory at once, ``switched`` where one process takes on both plans
    one after the other. ``e_value``: evidence of a speedup above ``rule.min_gain``; at ``1 / alpha`` it is accepted.
    """

    decision: Decision
    reason: str = ""
    estimate: Estimate | None = None
    e_value: float | None = None
    pairs: tuple[PairOfProcesses, ...] = ()
    rows: tuple[Row, ...] = ()
    incumbent: Side = Side()
    candidate: Side = Side()
    failure: SideFailure | None = None
    seconds: float = 0.0
    disturbed_share: float | None = None
    between_process_sd: float | None = None
    mode: Mode = "interleaved"

    @property
    def logs(self) -> tuple[list[float], list[float]]:
        """The log speedup that each pair of processes showed, and its standard error."""
        return [pair.log_ratio for pair in self.pairs], [pair.standard_error for pair in self.pairs]

    @property
    def ratios(self) -> tuple[float, ...]:
        """The speedup that each pair of processes showed."""
        return tuple(map(math.exp, self.logs[0]))

    def compares(self, base: Plan, plan: Plan) -> bool:
        """Whether it is of these two."""
        return self.incumbent.plan == base and self.candidate.plan == plan

    def of_same_steps(self, plan: Plan) -> Comparison:
        """A plan against itself, as it against another that takes the same steps: by its class its speed is equal."""
        n = self.estimate.n if self.estimate is not None else 0
        estimate = Estimate(value=1.0, low=1.0, high=1.0, n=n, confidence=None)
        ruled = {"decision": Decision.INCONCLUSIVE, "reason": "its steps are the baseline's", "estimate": estimate}
        candidate = self.incumbent.model_copy(update={"plan": plan})
        return self.model_copy(update={**ruled, "e_value": None, "pairs": (), "candidate": candidate})
