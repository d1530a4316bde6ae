"""One pair of processes, measured in alternating blocks.

Order is ABBA or BAAB, by lot for each four blocks, so that a steady drift cancels and a periodic
disturbance has no side to favour. While one side trains the other's whole process tree is frozen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, log
from statistics import median

import numpy as np

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arm import Arm, Start
from autoopt.search.compare.comparison import PairOfProcesses, Rule, SideFailure, SideName
from autoopt.search.compare.side_statistics import SideStatistics, rates
from autoopt.search.compare.statistics import MIN_BLOCKS, Level, trimmed

Clock = Callable[[], float]
SIDES: tuple[SideName, SideName] = ("incumbent", "candidate")
_MOST_DISCARDED = 0.25


class SideFailedError(Exception):
    """A side ended badly; ``both_alive`` tells whether the other side held memory at that time."""

    def __init__(self, side: SideName, error: TrialFailed, both_alive: bool) -> None:
        super().__init__(str(error))
        self.side = side
        self.error = error
        self.both_alive = both_alive

    @property
    def failure(self) -> SideFailure:
        """The document of this end."""
        error = self.error
        return SideFailure(
            side=self.side, kind=error.kind, message=error.message, where=error.where, detail=error.detail
        )


@contextmanager
def blaming(side: SideName, both_alive: bool = False) -> Iterator[None]:
    """Puts the name of the side on what fails inside."""
    try:
        yield
    except TrialFailed as error:
        raise SideFailedError(side, error, both_alive) from error
    except WorkloadError as error:  # the untouched workload, which was built before, cannot be built now
        failed = TrialFailed("error", error.message, detail=error.detail, where="build")
        raise SideFailedError(side, failed, both_alive) from error


def undisturbed(shares: Sequence[tuple[float | None, float | None]], limit: float) -> list[bool]:
    """Which block pairs to keep, from the foreign CPU share of their two blocks alone; ratios are never looked at.

    A block is disturbed when it saw more than ``limit`` above what is usual for its own side. Where one side has n of
    them, the n pairs with the most foreign time go on either side: time that is taken from every busy core shows more
    in the side that keeps more cores busy, and leaving out its slow blocks alone would make it look faster. At most a
    quarter goes: load that is there all the time belongs to the conditions of the measurement.
    """
    most = int(_MOST_DISCARDED * len(shares))
    sides = [_burdened([pair[side] for pair in shares], limit) for side in (0, 1)]
    count = min(max(disturbed for _, disturbed in sides), -(-most // 2))
    ranked = [
        (place >= disturbed, -over, index)
        for side, disturbed in sides
        for place, (over, index) in enumerate(side[:count])
    ]
    gone: list[int] = []
    for _, _, index in sorted(ranked):
        if index not in gone and len(gone) < most:
            gone.append(index)
    return [index not in gone for index in range(len(shares))]


def _burdened(shares: list[float | None], limit: float) -> tuple[list[tuple[float, int]], int]:
    """Blocks of a side above its usual share, by how much and where, most first; and how many by ``limit``."""
    known = [share for share in shares if share is not None]
    usual = median(known) if known else 0.0
    over = [(share - usual, -index) for index, share in enumerate(shares) if share is not None and share > usual]
    ranked = [(excess, -index) for excess, index in sorted(over, reverse=True)]
    return ranked, sum(excess > limit for excess, _ in ranked)


def block_length(rule: Rule, step_seconds: float | None) -> tuple[float, int, float]:
    """Seconds, steps and ramp seconds of the next block.

    Where steps are long, fewer of them make a block, which their number makes no longer than twice the shortest: many
    short blocks say more than few long ones. One that takes longer than a block is a block. None of these is spent on
    the ramp: what a thaw disturbs is over long before such a step is.
    """
    step = step_seconds or 0.0
    fewest = rule.min_steps if step <= 0 else min(rule.min_steps, max(int(2 * rule.block_seconds / step), 1))
    return rule.block_seconds, fewest, 0.0 if step > rule.block_seconds else rule.ramp_seconds


def make_steady(arm: Arm, side: SideStatistics, rule: Rule) -> None:
    """Waits until a process is set up, and trains until its steps are steady."""
    arm.ready()
    side.started(arm.warm_up(rule.warm_up_seconds))


def block_of(arm: Arm, side: SideStatistics, rule: Rule) -> Block:
    """One block of a process that is frozen before and after it, where the platform can."""
    if arm.can_freeze:
        arm.thaw()
    block = arm.block(*block_length(rule, side.step_seconds))
    if arm.can_freeze:
        arm.freeze()
    side.ran(block)
    return block


def end(arm: Arm) -> None:
    """Ends a process that may be frozen."""
    if arm.can_freeze:
        _quietly(arm.thaw)  # a stopped process cannot tidy up
    arm.close()


@dataclass
class Blocks:
    """The block pairs of one pair of processes."""

    log_ratios: list[float] = field(default_factory=list)
    shares: list[tuple[float | None, float | None]] = field(default_factory=list)
    settled: int = 0

    def add(self, incumbent: Block, candidate: Block) -> None:
        before, after = rates(incumbent, candidate)
        self.log_ratios.append(log(after) - log(before))
        self.shares.append((_foreign(incumbent), _foreign(candidate)))
        if incumbent.late_seconds or candidate.late_seconds:
            self.settled = len(self.log_ratios)

    def add_between(
        self, before: Block, block: Block, after: Block, *, late: float = 0.5, incumbent: bool = False
    ) -> None:
        """A block between two of the other side, whose speed at that moment stands beside it: a steady drift cancels.

        Args:
            late: where it lies between the two, from 0 to 1.
            incumbent: it is the incumbent's, and the two are the candidate's.
        """
        if incumbent:
            own, first, last = rates(block, before, after)
        else:
            first, own, last = rates(before, block, after)
        usual = (1 - late) * log(first) + late * log(last)
        shares = [share for share in (_foreign(before), _foreign(after)) if share is not None]
        around = sum(shares) / len(shares) if shares else None
        sign = -1.0 if incumbent else 1.0
        self.log_ratios.append(sign * (log(own) - usual))
        self.shares.append((_foreign(block), around) if incumbent else (around, _foreign(block)))
        if any(one.late_seconds for one in (before, block, after)):
            self.settled = len(self.log_ratios)

    @property
    def since(self) -> int:
        """The first block pair that counts: the one after a side has compiled again or searched, which may have
        changed its step, where enough of them follow."""
        return self.settled if len(self.log_ratios) - self.settled >= MIN_BLOCKS else 0

    def kept(self, limit: float) -> list[float]:
        keep = undisturbed(self.shares[self.since :], limit)
        return [ratio for ratio, kept in zip(self.log_ratios[self.since :], keep, strict=True) if kept]

    def level(self, limit: float, expected_sd: float | None = None) -> Level | None:
        """The robust mean with its error, or None while there are too few blocks."""
        kept = self.kept(limit)
        return trimmed(kept, expected_sd) if len(kept) >= MIN_BLOCKS else None

    def document(
        self, limit: float, expected_sd: float | None, *, startup_seconds: float, seconds: float
    ) -> PairOfProcesses | None:
        """The document of the pair of processes that they were measured in, or None where they are too few to count."""
        level, kept = self.level(limit, expected_sd), self.kept(limit)
        if level is None:
            return None
        return PairOfProcesses(
            log_ratio=level.value,
            standard_error=level.error,
            block_log_ratios=tuple(kept),
            block_sd=level.sd,
            disturbed=len(self.log_ratios) - self.since - len(kept),
            startup_seconds=startup_seconds,
            seconds=seconds,
        )


def _foreign(block: Block) -> float | None:
    return None if block.foreign_cpu_seconds is None else block.foreign_cpu_seconds / block.seconds


@dataclass(frozen=True)
class LiveArm:
    """A frozen process that was warmed up, how its start went, and its losses by step so far."""

    arm: Arm
    startup: Startup
    losses: dict[int, float | None]


class Pair:
    """A pair of live processes of incumbent and candidate.

    Args:
        start: starts a process.
        sides: statistics that are summed up over all pairs, by side.
        rule: block length, ramp and patience.
        rng: decides order.
        clock: seconds.
        incumbent: a process of it that is alive and frozen; started afresh where None.

    Attributes:
        pressed: the device's allocator had to free its cache and try again.
    """

    def __init__(
        self,
        start: Start,
        sides: dict[SideName, SideStatistics],
        rule: Rule,
        rng: np.random.Generator,
        clock: Clock,
        incumbent: LiveArm | None = None,
    ) -> None:
        self._start, self._sides, self._rule, self._rng, self._clock = start, sides, rule, rng, clock
        self._live: dict[SideName, Arm] = {}
        self._queue: list[tuple[SideName, SideName]] = []
        self.blocks = Blocks()
        self._made: dict[SideName, int] = {"incumbent": 0, "candidate": 0}
        self.pressed = False
        self.began = clock()
        self.ready_at = self.began
        if incumbent is not None:
            self._live["incumbent"] = incumbent.arm
            sides["incumbent"].started(incumbent.startup)
            sides["incumbent"].paths[-1].update(incumbent.losses)

    @property
    def freezing(self) -> bool:
        return all(arm.can_freeze for arm in self._live.values())

    def open(self) -> None:
        """Starts both sides, in an order drawn by lot, each warmed up while the other is frozen."""
        first = int(self._rng.integers(2))
        for side in (SIDES[first], SIDES[1 - first]):
            if side not in self._live:
                self._open(side)
        self._check_finite()
        self.ready_at = self._clock()

    def _check_finite(self) -> None:
        """Ends a candidate whose loss is not finite at its first steps, where the incumbent's is."""
        failed = not_finite(self._sides["incumbent"], self._sides["candidate"])
        if failed is not None:
            raise SideFailedError("candidate", failed, both_alive=False)

    def _open(self, side: SideName) -> None:
        both = bool(self._live)
        with blaming(side, both):
            arm = self._start(self._sides[side].plan, side)
            self._live[side] = arm
            make_steady(arm, self._sides[side], self._rule)
        with blaming(side):
            if arm.can_freeze:
                arm.freeze()

    def block_pair(self) -> None:
        """Measures one block of each side."""
        if not self._queue:
            a, b = SIDES if self._rng.integers(2) else (SIDES[1], SIDES[0])
            self._queue = [(a, b), (b, a)]
        order = self._queue.pop(0)
        blocks = {side: self.block(side) for side in order}
        self.blocks.add(blocks["incumbent"], blocks["candidate"])

    def block(self, side: SideName) -> Block:
        """Measures one block of one side and freezes it again."""
        with blaming(side, both_alive=len(self._live) > 1):
            block = block_of(self._live[side], self._sides[side], self._rule)
        self._made[side] += 1
        self.pressed = self.pressed or block.allocation_retries > 0
        return block

    def forget(self) -> None:
        """Takes this pair's blocks out of the sums again."""
        for side, count in self._made.items():
            self._sides[side].forget(count)

    def count_evaluated(self, seconds: float) -> None:
        """Lets both sides evaluate once, each in so many seconds, to see that they look at the same samples."""
        for side, arm in self._live.items():
            with blaming(side, both_alive=len(self._live) > 1):
                if arm.can_freeze:
                    arm.thaw()
                self._sides[side].evaluated_samples = arm.evaluated(seconds)
                if arm.can_freeze:
                    arm.freeze()

    def alternate(self, count: int, seconds: float = inf) -> bool:
        """Measures up to ``count`` blocks of one process, ends it, then as many of the other: never both at once.

        Args:
            seconds: for both. Where they do not hold the fewest blocks that count, it ends with the first block.

        Returns:
            Whether enough blocks were measured.
        """
        rates: dict[SideName, list[Block]] = {}
        first = int(self._rng.integers(2))
        for side in (SIDES[first], SIDES[1 - first]):
            self._open(side)
            began = self._clock()
            rates[side] = [self.block(side)]
            if len(rates) == 1:
                spent = self._clock() - self.began
                each = self._clock() - began
                count = int(min(count, 1 + max(seconds / 2 - spent, 0.0) / max(each, 1e-9)))
                if count < MIN_BLOCKS:
                    return False
            rates[side] += [self.block(side) for _ in range(count - 1)]
            self.close()
        for incumbent, candidate in zip(rates["incumbent"], rates["candidate"], strict=True):
            self.blocks.add(incumbent, candidate)
        return True

    def release(self) -> LiveArm | None:
        """Hands the incumbent's frozen process over, to be measured against the next candidate; None where it ended."""
        arm = self._live.pop("incumbent", None)
        incumbent = self._sides["incumbent"]
        return LiveArm(arm, incumbent.startups[-1], incumbent.paths[-1]) if arm is not None else None

    def close(self) -> None:
        for arm in self._live.values():
            end(arm)
        self._live.clear()

    def record(self, limit: float, expected_sd: float | None = None) -> PairOfProcesses | None:
        """This pair's document, or None where it has too few blocks to count."""
        spent = self._clock() - self.began
        return self.blocks.document(limit, expected_sd, startup_seconds=self.ready_at - self.began, seconds=spent)


def not_finite(incumbent: SideStatistics, candidate: SideStatistics) -> TrialFailed | None:
    """How a candidate ends whose loss is not finite at its first steps, where the incumbent's is."""
    before, after = (_first_not_finite(side.startups[-1]) for side in (incumbent, candidate))
    if after is None or (before is not None and before <= after):
        return None
    return TrialFailed("not_finite", f"the loss of step {after}", where="training")


def _first_not_finite(startup: Startup) -> int | None:
    return next((step for step, loss in enumerate(startup.losses, startup.first_step) if loss is None), None)


def _quietly(action: Callable[[], None]) -> None:
    try:
        action()
    except TrialFailed:
        return
