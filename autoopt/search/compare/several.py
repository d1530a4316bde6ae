"""One plan against several others, all of them alive: what the comparisons have in common is measured once.

A round starts a process of each. They train block by block, all but one frozen: a block of the shared plan, one of
each of the others in an order drawn by lot, and one of the shared plan again. What stands beside a block is the shared
plan's speed at its moment, between the two, so that a steady drift cancels. Each of the others has a sequential test of
its own, which sees a pair of processes a round as any comparison does, and takes part in no further round once it is
decided. The shared process is in all of them: each interval holds as it stands, but their errors are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, repeat

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.records import Noise, Plan, Record
from autoopt.records.messages import Block
from autoopt.search.compare.arm import Arm, Start
from autoopt.search.compare.compare import documented
from autoopt.search.compare.comparison import (
    Comparison,
    Decision,
    PairOfProcesses,
    Rule,
    SideFailure,
    SideName,
)
from autoopt.search.compare.pairs import (
    SIDES,
    Blocks,
    Clock,
    SideFailedError,
    blaming,
    block_of,
    end,
    make_steady,
    not_finite,
)
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.compare.side_statistics import SideStatistics
from autoopt.search.compare.statistics import MIN_BLOCKS

OnRound = Callable[[int], None]
"""``on_round(plans that are not decided)``, called before each round."""


class Several(Record):
    """Comparisons with one plan in common, in the order of the others; None where they did not fit together."""

    comparisons: tuple[Comparison | None, ...]


class _NoRoomError(Exception):
    """They do not fit into memory together, or this platform cannot freeze."""


@dataclass(eq=False)
class _Other:
    """One of the plans that the shared one is compared with, over all its rounds."""

    side: SideStatistics
    test: SequentialTest
    blocks: Blocks = field(default_factory=Blocks)
    arm: Arm | None = None
    decided: tuple[Decision, str] | None = None
    failure: SideFailure | None = None
    seconds: float = 0.0
    disturbed: int = 0
    block_pairs: int = 0

    def fail(self, side: SideName, error: TrialFailed) -> None:
        self.failure = SideFailedError(side, error, both_alive=False).failure
        whose = " (the incumbent, not the candidate)" if side == "incumbent" else ""
        self.decided = Decision.FAILED, self.failure.reason + whose

    def end(self) -> None:
        """Ends its process of this round."""
        if self.arm is not None:
            end(self.arm)
            self.arm = None


class _Comparing:
    """The comparisons under way.

    Args:
        role: of the shared plan in each comparison.
        others: the plans it is compared with.
        deadline: on the clock, for all together.
    """

    def __init__(
        self,
        start: Start,
        shared: Plan,
        others: Sequence[Plan],
        role: SideName,
        rule: Rule,
        clock: Clock,
        deadline: float,
        noise: Noise | None,
        rng: np.random.Generator,
        earlier: Sequence[Sequence[PairOfProcesses]],
    ) -> None:
        self._start, self._rule, self._clock, self._rng = start, rule, clock, rng
        self._role, self._opposite = role, SIDES[1 - SIDES.index(role)]
        self._shared = SideStatistics(shared)
        self._arm: Arm | None = None
        known = zip(others, chain(earlier, repeat(())), strict=False)
        self.others = [_Other(SideStatistics(plan), SequentialTest(rule, noise, pairs)) for plan, pairs in known]
        self._latest = min(deadline, clock() + rule.max_seconds)

    @property
    def _left(self) -> float:
        return self._latest - self._clock()

    def open(self) -> list[_Other]:
        """Those that a further round may decide; how the rest ended is told."""
        waiting = self._waiting(self.others)
        for other in waiting:  # what a pair of it costs is its share of a round
            other.decided = other.test.decide(self._left / len(waiting))
        return self._waiting(waiting)

    @staticmethod
    def _waiting(others: Sequence[_Other]) -> list[_Other]:
        return [other for other in others if other.decided is None]

    def round(self, others: Sequence[_Other]) -> None:
        """A pair of processes of each.

        Raises:
            _NoRoomError: they cannot be alive together; their earlier rounds stand, and no comparison is ended by it.
        """
        began = self._clock()
        try:
            self._begin(others)
            ready = self._clock()
            running, cycles = self._waiting(others), 0
            while running:
                self._cycle(running)
                cycles += 1
                running = self._short(running, ready - began, (self._clock() - ready) / cycles)
        finally:
            for other in others:
                other.end()
            if self._arm is not None:
                end(self._arm)
                self._arm = None
        spent = self._clock() - began
        for other in others:
            self._add(other, (ready - began) / len(others), spent / len(others))

    def _begin(self, others: Sequence[_Other]) -> None:
        """Starts a process of each in an order drawn by lot, each warmed up while the others are frozen."""
        most = max(min(self._rule.warm_up_seconds, self._left / (2 * (len(others) + 1))), 1.0)
        rule = self._rule.model_copy(update={"warm_up_seconds": most})
        for other in others:
            other.blocks = Blocks()
        every: list[_Other | None] = [None, *others]
        for place in self._rng.permutation(len(every)):
            if self._waiting(others):
                self._open(every[place], rule)
        for other in self._waiting(others):
            incumbent, candidate = self._in_order(self._shared, other.side)
            failed = not_finite(incumbent, candidate)
            if failed is not None:
                other.fail("candidate", failed)

    def _open(self, other: _Other | None, rule: Rule) -> None:
        side, label = (self._shared, self._role) if other is None else (other.side, self._opposite)
        with self._blamed(other):
            arm = self._start(side.plan, label)
            if other is None:
                self._arm = arm
            else:
                other.arm = arm
            make_steady(arm, side, rule)
            if not arm.can_freeze:
                raise _NoRoomError
            arm.freeze()

    @contextmanager
    def _blamed(self, other: _Other | None) -> Iterator[None]:
        """Puts what fails inside down to its plan, or to none where they may be too many for the memory.

        The shared plan's failure is that of all that wait.
        """
        label = self._role if other is None else self._opposite
        try:
            with blaming(label):
                yield
        except SideFailedError as failed:
            if failed.error.for_want_of_room:  # alone it may fit: a comparison by itself says whose fault it is
                raise _NoRoomError from failed
            for one in self._waiting(self.others if other is None else [other]):
                one.fail(label, failed.error)
                one.end()  # what hangs would train beside the others

    def _cycle(self, running: Sequence[_Other]) -> None:
        """A block of each of the others, between two of the shared plan."""
        before = self._block(None)
        if before is None:
            return
        order = [running[place] for place in self._rng.permutation(len(running))]
        made = [(other, self._block(other)) for other in order]
        after = self._block(None)
        if after is None:
            return
        for place, (other, block) in enumerate(made, start=1):
            if block is not None:
                late = place / (len(made) + 1)
                other.blocks.add_between(before, block, after, late=late, incumbent=self._role == "candidate")

    def _block(self, other: _Other | None) -> Block | None:
        """A block of one process; None where it failed."""
        arm, side = (self._arm, self._shared) if other is None else (other.arm, other.side)
        assert arm is not None
        block = None
        with self._blamed(other):
            block = block_of(arm, side, self._rule)
        if block is not None and block.allocation_retries > 0:  # the allocator had to free its cache and try again
            raise _NoRoomError
        return block

    def _in_order(self, shared: SideStatistics, other: SideStatistics) -> tuple[SideStatistics, SideStatistics]:
        """Incumbent and candidate."""
        return (shared, other) if self._role == "incumbent" else (other, shared)

    def _short(self, running: Sequence[_Other], startup: float, cost: float) -> list[_Other]:
        """Those that need more blocks in this round; none where the time is up.

        Short of the deadline a round gets the fewest blocks that count: its starts are paid for.

        Args:
            startup: seconds in which all were started.
            cost: seconds of a cycle of blocks.
        """
        waiting = self._waiting(running)
        share = self._rule.foreign_share
        levels = [(other, other.blocks.level(share, other.test.expected_sd)) for other in waiting]
        short = [other for other, level in levels if not other.test.enough(level, startup, cost)]
        count = min((len(other.blocks.log_ratios) for other in short), default=0)
        paid = 0.0 < max(MIN_BLOCKS - count, 0) * cost <= startup
        return short if self._left > 0 or paid else []

    def _add(self, other: _Other, startup: float, seconds: float) -> None:
        """Adds what a round showed of one of them; its seconds are a share of the round's."""
        other.seconds += seconds
        if other.decided is not None:
            return
        other.block_pairs += len(other.blocks.log_ratios)
        share, expected = self._rule.foreign_share, other.test.expected_sd
        pair = other.blocks.document(share, expected, startup_seconds=startup, seconds=seconds)
        if pair is not None:
            other.disturbed += pair.disturbed
            other.test.add(pair)

    def document(self, other: _Other) -> Comparison | None:
        if other.decided is None:
            return None
        incumbent, candidate = self._in_order(self._shared, other.side)
        return documented(
            other.test,
            {"incumbent": incumbent, "candidate": candidate},
            other.decided,
            other.failure,
            seconds=other.seconds,
            disturbed_share=other.disturbed / other.block_pairs if other.block_pairs else None,
        )


def compare_several(
    start: Start,
    shared: Plan,
    others: Sequence[Plan],
    role: SideName,
    rule: Rule,
    *,
    clock: Clock,
    deadline: float = float("inf"),
    noise: Noise | None = None,
    rng: np.random.Generator | None = None,
    on_round: OnRound | None = None,
    earlier: Sequence[Sequence[PairOfProcesses]] = (),
) -> Several:
    """Measures one plan against each of several, as :func:`autoopt.search.compare.compare.compare` does of two.

    A plan that fails is a result; the shared plan's failure is that of each. No process is left behind.

    Args:
        start, clock, noise, rng: as there.
        shared: the plan that is in each comparison.
        others: those that it is compared with.
        role: the shared plan's in each comparison.
        rule: when to end; its seconds are those of all together.
        deadline: on the clock.
        on_round: told before each round.
        earlier: for each of the others the pairs of processes from a comparison that was left undecided.

    Returns:
        None for those that were not decided when they did not fit together: they are to be compared by themselves.
    """
    rng = rng or np.random.default_rng(0)
    comparing = _Comparing(start, shared, others, role, rule, clock, deadline, noise, rng, earlier)
    try:
        while open_ := comparing.open():
            if on_round is not None:
                on_round(len(open_))
            comparing.round(open_)
    except _NoRoomError:
        pass
    return Several(comparisons=tuple(comparing.document(other) for other in comparing.others))
