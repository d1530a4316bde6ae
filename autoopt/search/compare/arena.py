"""The arena: live processes of several plans, of which one trains at a time and the others are frozen.

Where its processes come from is a :class:`Source`: fresh ones, one that lives on from before, or one process that takes
each plan on one after the other. A round measures one block of every plan, in an order drawn at random and reversed in
the next round, so that a steady drift cancels and a periodic disturbance has no side to favor. Each block is a row of
the account.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import ceil

import numpy as np

from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records import Plan
from autoopt.records.account import Row
from autoopt.records.messages import Block, Startup
from autoopt.search.compare.arm import Start, TrialArm
from autoopt.search.compare.comparison import Rule, SideName, SideStatistics

Clock = Callable[[], float]
SIDES: tuple[SideName, SideName] = ("incumbent", "candidate")

ONE_STEP = 1e-6
"""Seconds of a ramp that ends with its first step."""
SWITCHED_SECONDS = 0.15
"""Of a block in a process that switches between plans: nothing is thawed before it, so that short blocks are as clean
as long ones, and more of them fit."""


@dataclass(frozen=True)
class LiveArm:
    """A frozen process that was warmed up, how its start went, and its losses by step so far."""

    arm: TrialArm
    startup: Startup
    losses: dict[int, float | None]

    def close(self) -> None:
        """Ends the process."""
        end(self.arm)


@dataclass(frozen=True)
class Source:
    """Where the processes of an arena come from.

    Args:
        live: a frozen process of the first plan (or of ``switched``) that lives on from before.
        switched: the plan of one process that takes on every plan of the arena, block by block; None where each
            plan has a process of its own.
    """

    start: Start
    live: LiveArm | None = None
    switched: Plan | None = None


@dataclass(eq=False)
class Seat:
    """A plan in the arena, with statistics that are summed up over all arenas; ``label``: of its process's log."""

    label: SideName
    side: SideStatistics
    arm: TrialArm | None = None
    startup: Startup | None = None
    blocks: int = 0

    @property
    def cycle(self) -> int:
        return self.startup.cycle if self.startup is not None else 1


class SeatFailedError(Exception):
    """A process ended badly, or could not be started; ``others`` shows whether others held memory at that time."""

    def __init__(self, seat: Seat, error: TrialFailed, others: bool) -> None:
        super().__init__(str(error))
        self.seat, self.error, self.others = seat, error, others

    @property
    def for_want_of_room(self) -> bool:
        """Whether the process may have failed because others were alive next to it."""
        return self.error.for_want_of_room and self.others


class Arena:
    """Processes of several plans from one source, until it is closed.

    ``pressed``: the device's allocator had to free its cache and try again; ``startup_seconds``: that starting and
    warming up took.
    """

    def __init__(
        self, source: Source, seats: Sequence[Seat], rule: Rule, clock: Clock, rng: np.random.Generator
    ) -> None:
        self._source, self.seats, self._rule, self._clock, self._rng = source, list(seats), rule, clock, rng
        self._running: TrialArm | None = None
        self._drawn: list[Seat] = []
        self._live = source.live
        self._round = 0
        self.pressed = False
        self.startup_seconds = 0.0
        for seat in self.seats:  # what an earlier arena left of its process
            seat.arm, seat.startup, seat.blocks = None, None, 0

    def drawn(self) -> list[Seat]:
        """The seats in an order drawn at random, the first of them first where its process serves all or is alive."""
        order = [self.seats[place] for place in self._rng.permutation(len(self.seats))]
        one_first = self._live is not None or self._source.switched is not None
        return sorted(order, key=lambda seat: seat is not self.seats[0]) if one_first else order

    def open(self, seat: Seat, warm_up_seconds: float) -> None:
        """Starts a seat's process and trains until its steps are steady, so long at most, while the others are frozen.

        Raises:
            SeatFailedError: it cannot be started, or does not train.
        """
        began = self._clock()
        shared = self._source.switched
        live = self._live if shared is not None or seat is self.seats[0] else None
        with self._blaming(seat):
            live = live or self._start(seat, seat.side.plan if shared is None else shared, warm_up_seconds)
        if shared is not None:
            self._live = live
        seat.arm, seat.startup = live.arm, live.startup
        seat.side.started(live.startup)
        seat.side.paths[-1].update(live.losses if shared is None else {})
        self.startup_seconds += self._clock() - began

    def _start(self, seat: Seat, plan: Plan, warm_up_seconds: float) -> LiveArm:
        self._rest()
        arm = self._source.start(plan, seat.label)
        seat.arm = arm
        arm.ready()
        startup = arm.warm_up(warm_up_seconds)
        arm.freeze()
        return LiveArm(arm, startup, {})

    def order(self, others: Sequence[Seat]) -> list[Seat]:
        """Begins a round: the seats in the order in which each gets a block.

        The first seat, which is in all comparisons, gets as many as the root of the number of the others: the best
        share for a control (Dunnett, "A multiple comparison procedure for comparing several treatments with a
        control", JASA 50, 1955). Its blocks are spread evenly.
        """
        self._round += 1
        if self._drawn and {id(seat) for seat in self._drawn} == {id(seat) for seat in (self.seats[0], *others)}:
            order, self._drawn = self._drawn[::-1], []
            return order
        order = [others[place] for place in self._rng.permutation(len(others))]
        shared = max(round(len(order) ** 0.5), 1)
        places = [(number + 0.5) * len(order) / shared for number in range(shared)]
        for place in reversed(places):
            order.insert(int(place) + int(self._rng.random() < place % 1), self.seats[0])
        self._drawn = order
        return order

    def block(self, seat: Seat) -> Row:
        """One block of one seat.

        Raises:
            SeatFailedError: the process ended badly.
        """
        assert seat.arm is not None
        with self._blaming(seat):
            if self._running is not seat.arm:
                self._rest()
                seat.arm.thaw()
                self._running = seat.arm
            start, (seconds, steps, ramp) = self._clock(), block_length(self._rule, seat.side.step_seconds)
            cycle = seat.cycle * ceil(max(each.cycle for each in self.seats) / seat.cycle)
            if self._source.switched is None:
                block = seat.arm.block(seconds, steps, ramp, cycle)
                self._rest()
            else:
                length = (SWITCHED_SECONDS, steps if ramp else 1, ONE_STEP if ramp else 0.0)
                block = seat.arm.switched_block(seat.side.plan, *length, cycle)
        seat.side.ran(block)
        seat.blocks += 1
        self.pressed = self.pressed or block.allocation_retries > 0
        return row_of(block, seat.side.plan, seat.arm.process, self._round, start)

    def _rest(self) -> None:
        """Freezes the process that trains."""
        running, self._running = self._running, None
        if running is not None:
            with suppress(TrialFailed):  # one that has just ended says so by the call that failed
                running.freeze()

    @contextmanager
    def _blaming(self, seat: Seat) -> Iterator[None]:
        """Puts the seat's name on what fails inside."""
        others = len({id(each.arm) for each in self.seats if each.arm is not None} - {id(seat.arm)}) > 0
        try:
            yield
        except TrialFailed as error:
            raise SeatFailedError(seat, error, others) from error
        except WorkloadError as error:  # the untouched workload, which was built before, cannot be built now
            failed = TrialFailed("error", error.message, detail=error.detail, where="build")
            raise SeatFailedError(seat, failed, others) from error

    def forget(self) -> None:
        """Takes this arena's blocks out of the sides' sums again."""
        for seat in self.seats:
            seat.side.forget(seat.blocks)

    def release(self) -> LiveArm | None:
        """Hands over the frozen process of the first seat, which lives on; None where there is none."""
        self._rest()
        first = self.seats[0]
        if first.arm is None or first.startup is None:
            return None
        losses = first.side.paths[-1] if self._source.switched is None else {}
        live = LiveArm(first.arm, first.startup, losses)
        for seat in self.seats:
            seat.arm = None if seat.arm is live.arm else seat.arm
        self._live = None
        return live

    def end(self, seat: Seat) -> None:
        """Ends a seat's process, unless another seat has the same."""
        arm, seat.arm = seat.arm, None
        if arm is None or any(each.arm is arm for each in self.seats):
            return
        if self._running is arm:
            self._running = None
        end(arm)
        if self._live is not None and self._live.arm is arm:
            self._live = None

    def close(self) -> None:
        """Ends all of its processes."""
        for seat in self.seats:
            self.end(seat)
        if self._live is not None:
            self._live.close()
            self._live = None


def row_of(block: Block, plan: Plan, process: str, round_: int, start: float) -> Row:
    """The row of a block."""
    shared = ("steps", "samples", "seconds", "stage_seconds", "foreign_cpu_seconds", "late_seconds")
    seen = {name: getattr(block, name) for name in shared}
    return Row(plan=plan.key, process=process, round=round_, start=start, **seen)


def block_length(rule: Rule, step_seconds: float | None) -> tuple[float, int, float]:
    """Seconds, steps and ramp seconds of the next block.

    Where steps are long, fewer of them make a block, which their number makes no longer than twice the shortest: many
    short blocks say more than few long ones. A step that takes longer than a block is a block. None of these is spent
    on the ramp: what a thaw disturbs is over long before such a step is.
    """
    step = step_seconds or 0.0
    fewest = rule.min_steps if step <= 0 else min(rule.min_steps, max(int(2 * rule.block_seconds / step), 1))
    return rule.block_seconds, fewest, 0.0 if step > rule.block_seconds else rule.ramp_seconds


def end(arm: TrialArm) -> None:
    """Ends a process that may be frozen."""
    with suppress(TrialFailed):
        arm.thaw()  # a stopped process cannot tidy up
    arm.close()
