"""Contests: one plan against one or several others, by generations of processes, until each is decided or time is up.

A generation is an arena: one process of each plan (or one that takes all of them on), measured round after round. It
gives each comparison one pair of processes. Each of the others has a sequential test of its own and takes part in no
further generation once it is decided. The shared plan is in all comparisons: each interval holds as it stands, but
their errors are not independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from math import inf
from typing import Any, TypeVar

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, Noise, Plan, Record
from autoopt.records.account import Row
from autoopt.search.compare.arena import SIDES, Arena, Clock, LiveArm, Seat, SeatFailedError, Source
from autoopt.search.compare.arm import Start
from autoopt.search.compare.comparison import (
    Comparison,
    Decision,
    LossPath,
    Mode,
    PairOfProcesses,
    Rule,
    Side,
    SideFailure,
    SideName,
    SideStatistics,
)
from autoopt.search.compare.sequential_test import PLAN_DOF, SequentialTest
from autoopt.search.compare.statistics import MIN_BLOCKS, Rounds, merged

T = TypeVar("T")

OnProgress = Callable[[str, Estimate | None], None]
"""``on_progress(note, estimate so far)``, called after every round."""
OnGeneration = Callable[[int], None]
"""``on_generation(plans that are not decided)``, called before each generation of processes."""

INTERLEAVED: Mode = "interleaved"
SWITCHED: Mode = "switched"
SWITCHED_SD = 0.01
"""Between-process standard deviation (log) of what a change brings, of processes that switch between plans: the guess
of which intervals are made before they have shown it."""
_ALTERNATING_BLOCKS = 10
"""Of one process and then of the other, where both do not fit together: enough for a standard error of either."""
_LEAST_WARM_UP = 1.0
"""Seconds in which steps become steady at the least, however little time is left."""


class Several(Record):
    """Comparisons with one plan in common, in the order of the others; None where they did not fit together."""

    comparisons: tuple[Comparison | None, ...]


class _NoRoomError(Exception):
    """They do not fit into memory together."""


def within(noise: Noise) -> Noise:
    """The noise of comparisons in one process: that of its blocks, and what a process of its own may change."""
    return noise.model_copy(update={"process_sd": SWITCHED_SD, "process_dof": PLAN_DOF})


@dataclass(eq=False, kw_only=True)
class _Rival(Seat):
    """One of the plans that the shared plan is compared with, over all generations."""

    test: SequentialTest
    rounds: Rounds = field(init=False)
    decided: tuple[Decision, str] | None = None
    failure: SideFailure | None = None
    lost: bool = False
    seconds: float = 0.0
    disturbed: int = 0
    counted: int = 0
    rows: list[Row] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        return self.decided is None and not self.lost

    def fails(self, side: SideName, error: TrialFailed) -> None:
        self.failure = SideFailure.of(side, error)
        whose = " (the incumbent, not the candidate)" if side == "incumbent" else ""
        self.decided = Decision.FAILED, self.failure.reason + whose


class Contest:
    """Comparisons of a shared plan with others, under way.

    Args:
        role: the shared plan's in each comparison.
        rule: when to end; its seconds are those of all together.
        deadline: on the clock; a comparison ends at the earlier of it and ``rule.max_seconds``, of which only the
            deadline holds for the first pairs of a comparison ``until_error``: as many as it has at least, two at most.
        noise: the A/A control, with the between-process variance and the floor; None before there is one.
        most_rounds: of a generation, where more of them are worth less than what else the time may bring.
        earlier: pairs of processes of each of the others, from a comparison that was left undecided and now goes
            on; ``noise`` is then what was known before them.
        keep_live: the shared plan's process of the last generation lives on, as ``live``.
        alternating: no two processes are alive at once: it is known that they do not fit together.

    Attributes:
        for_want_of_room: processes did not fit into memory together.
    """

    def __init__(
        self,
        source: Source,
        shared: Plan,
        others: Sequence[Plan],
        role: SideName,
        rule: Rule,
        *,
        clock: Clock,
        deadline: float = inf,
        noise: Noise | None = None,
        rng: np.random.Generator | None = None,
        most_rounds: int | None = None,
        earlier: Sequence[Sequence[PairOfProcesses]] = (),
        on_progress: OnProgress | None = None,
        on_generation: OnGeneration | None = None,
        keep_live: bool = False,
        alternating: bool = False,
    ) -> None:
        self._source, self._rule, self._clock = source, rule, clock
        self._rng = rng or np.random.default_rng(0)
        self._deadline, self._began, self._most_rounds = deadline, clock(), most_rounds
        self._on_progress, self._on_generation, self._keep_live = on_progress, on_generation, keep_live
        self._role: SideName = role
        opposite: SideName = SIDES[1 - SIDES.index(role)]
        self._shared = Seat(role, SideStatistics(shared))
        if source.switched is not None:
            noise = within(noise or Noise())
        self.rivals = [
            _Rival(opposite, SideStatistics(plan), test=SequentialTest(rule, noise, pairs))
            for plan, pairs in zip(others, chain(earlier, repeat(())), strict=False)
        ]
        self._mode: Mode = INTERLEAVED if source.switched is None else SWITCHED
        self.live: LiveArm | None = None
        self.for_want_of_room = alternating
        if alternating:
            self._alternate_from_now_on()

    def run(self) -> list[Comparison | None]:
        """Generation after generation. None for those that were not decided when all did not fit together, or of which
        a process that switches could not tell: they are to be compared by processes of their own."""
        while True:
            waiting = [rival for rival in self.rivals if rival.waits]
            for rival in waiting:  # what a pair of it costs is its share of a generation
                rival.decided = rival.test.decide(self._left(rival) / len(waiting))
            waiting = [rival for rival in waiting if rival.waits]
            if not waiting:
                break
            if self._on_generation is not None:
                self._on_generation(len(waiting))
            try:
                self._generation(waiting)
            except _NoRoomError:
                if len(self.rivals) > 1:
                    break
                self._alternate_from_now_on()
        return [self._document(rival) for rival in self.rivals]

    def _left(self, rival: _Rival) -> float:
        """Seconds; a candidate that looks worth keeping has more of them. Where a figure is wanted and not a verdict,
        one pair of processes is none: how processes differ needs two."""
        rule = self._rule
        if rule.until_error is not None and len(rival.test.pairs) < min(rule.min_pairs, 2):
            return self._deadline - self._clock()
        more = rule.more_seconds if rule.more_seconds and rival.test.promising() else 0.0
        return min(self._deadline, self._began + rule.max_seconds + more) - self._clock()

    def _generation(self, waiting: Sequence[_Rival]) -> None:
        """A pair of processes of each.

        Raises:
            _NoRoomError: they cannot be alive together; earlier generations stand, and nothing is ended by it.
        """
        began = self._clock()
        for rival in waiting:
            rival.rounds = Rounds()
        source, self._source = self._source, Source(self._source.start, None, self._source.switched)
        arena = Arena(source, [self._shared, *waiting], self._rule, self._clock, self._rng)
        try:
            if self._mode == "alternating":
                self._alternate(arena, waiting[0])
            else:
                self._open(arena, waiting)
                ready, rounds = self._clock(), 0
                running = [rival for rival in waiting if rival.waits]
                while running and self._round(arena, running):
                    rounds += 1
                    spent = self._clock() - ready
                    running = self._short(running, arena.startup_seconds, spent / rounds, spent)
            self._finish(arena, waiting, began)
            if self._keep_live:
                self.live = arena.release()
        finally:
            arena.close()

    def _open(self, arena: Arena, waiting: Sequence[_Rival]) -> None:
        left = min(self._left(rival) for rival in waiting)
        most = max(min(self._rule.warm_up_seconds, left / (2 * (len(waiting) + 1))), _LEAST_WARM_UP)
        for seat in arena.drawn():
            if any(each.waits for each in waiting) and (not isinstance(seat, _Rival) or seat.waits):
                self._guarded(arena, seat, partial(arena.open, seat, most))
        for rival in waiting:
            if rival.waits and self._shared.startup is not None and rival.startup is not None:
                incumbent, candidate = self._in_order(self._shared.startup, rival.startup)
                usual, bad = (LossPath.of(each.losses, each.first_step).not_finite for each in (incumbent, candidate))
                if bad is not None and (usual is None or usual > bad):
                    rival.fails("candidate", TrialFailed("not_finite", f"the loss of step {bad}", where="training"))

    def _guarded(self, arena: Arena, seat: Seat, action: Callable[[], object]) -> bool:
        """Does something to a seat's process. Returns whether it went well; what failed is put down to its plan, of the
        shared plan to all that wait.

        Raises:
            _NoRoomError: it may have failed since they are too many for the memory.
        """
        try:
            action()
            return True
        except SeatFailedError as failed:
            if failed.for_want_of_room:  # alone it may fit: then it is seen whose fault it is
                self.for_want_of_room = True
                raise _NoRoomError from failed
            for each in [seat] if isinstance(seat, _Rival) else self.rivals:
                if each.waits and self._mode == SWITCHED:  # a process of its own shows what it is
                    each.lost = True
                elif each.waits:
                    each.fails(seat.label, failed.error)
            arena.end(failed.seat)  # what hangs would train next to the others
            return False

    def _round(self, arena: Arena, running: Sequence[_Rival]) -> bool:
        """A block of each. False where the shared plan's process is lost, and with it this generation."""
        found: dict[int, list[Row]] = {}
        lost = False
        for seat in arena.order(running):
            measure = partial(_add_block, arena, seat, found.setdefault(id(seat), []))
            if lost:  # a plan has failed in the one process: does it go on?
                try:
                    measure()
                except SeatFailedError:
                    return False
                lost = False
            elif not self._guarded(arena, seat, measure):
                if seat is self._shared:
                    return False
                lost = self._mode == SWITCHED
            if arena.pressed and self._mode != SWITCHED:  # the allocator had to free its cache and try again
                arena.forget()
                raise _NoRoomError
        shared = found.get(id(self._shared))
        for rival in running:
            own = found.get(id(rival))
            if not shared or not own or not rival.waits:
                continue
            incumbent, candidate = self._in_order(shared, own)
            if incumbent[-1].samples is not None and candidate[-1].samples is None:
                what = "the candidate's samples cannot be counted, and the baseline's are"
                rival.fails("candidate", TrialFailed("error", what))
                continue
            if self._mode == SWITCHED and rival.side.broke and not self._shared.side.broke:
                rival.lost = True
                continue
            rival.rounds.add(*self._in_order(merged(shared), merged(own)))
            rival.rows += [*shared, *own]
            if self._on_progress is not None:
                level = rival.rounds.level(rival.test.expected_sd)
                self._on_progress(f"pair {len(rival.test.pairs) + 1}", rival.test.estimate(level))
        return True

    def _in_order(self, shared: T, other: T) -> tuple[T, T]:
        """Incumbent's and candidate's."""
        return (shared, other) if self._role == "incumbent" else (other, shared)

    def _short(self, running: Sequence[_Rival], startup: float, cost: float, measured: float) -> list[_Rival]:
        """Those that need more rounds in this generation; none where the time is up.

        Short of the deadline a generation gets the fewest rounds that count, where they take no longer than what was
        spent on it already. ``cost`` is of a round, ``measured`` of all rounds, in seconds.
        """
        another, short = startup, list[_Rival]()
        if self._source.switched is not None and self._shared.startup is not None:
            another = max(startup, self._shared.startup.steady_seconds)  # what another process would take
        for rival in (each for each in running if each.waits):
            level, rounds = rival.rounds.level(rival.test.expected_sd), len(rival.rounds.paired)
            most = self._most_rounds is not None and level is not None and rounds >= self._most_rounds
            if not most and not rival.test.enough(level, another, cost):
                short.append(rival)
        count = min((len(rival.rounds.paired) for rival in short), default=0)
        missing = max(MIN_BLOCKS - count, 0) * cost
        worth = 0.0 < missing <= startup + measured and self._clock() + missing <= self._deadline
        over = all(self._left(rival) <= 0 for rival in short)
        return [] if over and not worth else short

    def _alternate_from_now_on(self) -> None:
        """From now on no two processes are alive at once."""
        self._mode, self.for_want_of_room = "alternating", True
        for rival in self.rivals:
            rival.test.widen()

    def _alternate(self, arena: Arena, rival: _Rival) -> None:
        """Up to ten blocks of one process, then as many of the other: never both at once."""
        count, found = _ALTERNATING_BLOCKS, dict[int, list[Row]]()
        began, seconds = self._clock(), self._left(rival)
        most = max(min(self._rule.warm_up_seconds, seconds / 4), _LEAST_WARM_UP)
        for seat in arena.drawn():
            if not self._guarded(arena, seat, partial(arena.open, seat, most)):
                return
            since, rows = self._clock(), found.setdefault(id(seat), [])
            while len(rows) < count:
                if not self._guarded(arena, seat, partial(_add_block, arena, seat, rows)):
                    return
                if len(found) == len(rows) == 1:
                    now = self._clock()
                    count = int(min(count, 1 + max(seconds / 2 - (now - began), 0.0) / max(now - since, 1e-9)))
                    if count < MIN_BLOCKS:
                        rival.decided = Decision.INCONCLUSIVE, "no time for both sides one after the other"
                        return
            arena.end(seat)
        for shared, other in zip(found[id(self._shared)], found[id(rival)], strict=True):
            rival.rounds.add(*self._in_order(shared, other))
            rival.rows += self._in_order(shared, other)

    def _finish(self, arena: Arena, waiting: Sequence[_Rival], began: float) -> None:
        """Adds what a generation showed of each; its seconds are a share of the generation's."""
        spent, startup = self._clock() - began, arena.startup_seconds
        all_wait = all(rival.waits for rival in waiting)
        for rival in waiting:
            rival.seconds += spent / len(waiting)
            rival.counted += len(rival.rounds.paired)
            expected = rival.test.expected_sd
            each = {"startup_seconds": startup / len(waiting), "seconds": spent / len(waiting)}
            pair = rival.rounds.document(expected, **each)
            if not rival.waits:
                continue
            # where no rival is to blame, such as of a script that ends before, the next process would show as little
            if pair is None and self._mode == SWITCHED and (all_wait or self._left(rival) <= 0):
                rival.lost = not rival.test.pairs
                rival.decided = None if rival.lost else rival.test.decide(0.0)
            if pair is not None:
                rival.disturbed += pair.disturbed
                rival.test.add(pair)

    def _document(self, rival: _Rival) -> Comparison | None:
        if rival.decided is None:
            return None
        incumbent, candidate = self._in_order(self._shared.side.side(), rival.side.side())
        decision, reason = rival.decided
        compiler = candidate.startup.compiler if candidate.startup is not None else None
        found = Comparison(
            decision=decision,
            reason=f"{reason}; {compiler}" if compiler else reason,
            estimate=rival.test.estimate(),
            e_value=rival.test.e_value(),
            pairs=tuple(rival.test.pairs),
            rows=tuple(rival.rows),
            incumbent=incumbent,
            candidate=candidate,
            failure=rival.failure,
            seconds=rival.seconds,
            disturbed_share=rival.disturbed / rival.counted if rival.counted else None,
            between_process_sd=rival.test.between_process_sd,
            mode=self._mode,
        )
        startup = self._shared.startup
        if self._mode != SWITCHED or startup is None:
            return found

        def switched(side: Side) -> Side:
            """Of a process that switches: only its own plan has a start, and losses are of no plan's own."""
            own = side.plan == self._source.switched
            started = {"startup": startup if own else None, "fixed_seconds": (startup.fixed_seconds,) if own else ()}
            return side.model_copy(update={**started, "losses": LossPath(), "losses_again": LossPath()})

        reason = found.reason.replace("pairs of processes", "processes that were switched")
        sides = {"incumbent": switched(found.incumbent), "candidate": switched(found.candidate)}
        return found.model_copy(update={"reason": reason, **sides})


def _add_block(arena: Arena, seat: Seat, rows: list[Row]) -> None:
    rows.append(arena.block(seat))


def compare(
    start: Start,
    incumbent: Plan,
    candidate: Plan,
    rule: Rule,
    *,
    earlier: Sequence[PairOfProcesses] = (),
    **options: Any,
) -> Comparison:
    """Measures how much faster ``candidate`` trains than ``incumbent``, by pairs of fresh processes; see
    :class:`Contest`.

    A side that fails is a result (``decision`` is ``failed``, ``failure`` names the side), never an exception. No
    process is left behind.
    """
    (found,) = Contest(Source(start), incumbent, [candidate], "incumbent", rule, earlier=[earlier], **options).run()
    assert found is not None
    return found
