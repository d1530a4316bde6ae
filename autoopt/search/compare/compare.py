"""Candidate against incumbent: pairs of live processes, until it is decided or time is up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autoopt.records import Estimate, Noise, Plan
from autoopt.search.compare.arm import Start
from autoopt.search.compare.comparison import (
    Comparison,
    Decision,
    Mode,
    PairOfProcesses,
    Rule,
    SideFailure,
    SideName,
)
from autoopt.search.compare.pairs import Clock, Pair, SideFailedError
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.compare.side_statistics import SideStatistics
from autoopt.search.compare.statistics import MIN_BLOCKS, Level

OnProgress = Callable[[str, Estimate | None], None]
"""``on_progress(note, estimate so far)``, called after every block pair."""

_ALTERNATING_BLOCKS = 10
_LEAST_PAIRS = 2
_EVALUATING_SECONDS = 10.0
"""The longest evaluation of an accepted change that is counted; a longer one is counted in whole trainings."""


class _Comparing:
    """One comparison under way."""

    def __init__(
        self,
        start: Start,
        sides: dict[SideName, SideStatistics],
        test: SequentialTest,
        clock: Clock,
        deadline: float,
        rng: np.random.Generator,
        on_progress: OnProgress | None,
    ) -> None:
        self.start, self.sides, self.test, self.clock, self.rng = start, sides, test, clock, rng
        self.rule = test.rule
        self.began = clock()
        self.latest = deadline
        self.on_progress = on_progress
        self.mode: Mode = "interleaved"
        self.disturbed = self.block_pairs = 0

    @property
    def left(self) -> float:
        """Seconds; a candidate that looks worth keeping has more of them.

        Where a figure is wanted and not a verdict, one pair of processes is none: how processes differ needs two.
        """
        rule = self.rule
        if rule.until_error is not None and len(self.test.pairs) < _LEAST_PAIRS:
            return self.latest - self.clock()
        more = rule.more_seconds if rule.more_seconds and self.test.promising() else 0.0
        return min(self.latest, self.began + rule.max_seconds + more) - self.clock()

    def run(self) -> tuple[Decision, str]:
        """Pair after pair until decided. A new pair is not started that cannot be finished."""
        while True:
            decided = self.test.decide(self.left)
            if decided:
                return decided
            pair = Pair(self.start, self.sides, self._patient(), self.rng, self.clock)
            try:
                if self.mode == "alternating":
                    if not pair.alternate(_ALTERNATING_BLOCKS, self.left):
                        return Decision.INCONCLUSIVE, "no time for both sides one after the other"
                elif not self._interleave(pair):
                    self._take_turns()
                    continue
                self._finish(pair)
            except SideFailedError as failed:
                if not (failed.error.for_want_of_room and failed.both_alive):
                    raise
                self._take_turns()  # alone each may fit; if not, the next pair says whose fault it is
                continue
            finally:
                pair.close()

    def _patient(self) -> Rule:
        """The rule, with no longer a warm-up than the time left allows."""
        most = max(min(self.rule.warm_up_seconds, self.left / 4), 1.0)
        return self.rule.model_copy(update={"warm_up_seconds": most})

    def _take_turns(self) -> None:
        """From now on no two processes are alive at once."""
        self.mode = "alternating"
        self.test.widen()

    def _interleave(self, pair: Pair) -> bool:
        """Measures a pair side by side. False where their memory together was short, which is neither's fault."""
        pair.open()
        if not pair.freezing:
            self.mode = "unfrozen"
        while True:
            pair.block_pair()
            if pair.pressed:
                pair.forget()
                return False
            level = pair.blocks.level(self.rule.foreign_share, self.test.expected_sd)
            self._report(level)
            cost = (self.clock() - pair.ready_at) / len(pair.blocks.log_ratios)
            if self.test.enough(level, pair.ready_at - pair.began, cost) or self._over(pair, cost):
                return True

    def _over(self, pair: Pair, cost: float) -> bool:
        """Whether the time is up. Short of the deadline a pair gets the fewest blocks that count: it is paid for.

        Args:
            cost: seconds of a block pair.
        """
        missing = max(MIN_BLOCKS - len(pair.blocks.log_ratios), 0) * cost
        paid = pair.ready_at - pair.began
        worth = 0.0 < missing <= paid and self.clock() + missing <= self.latest
        return self.left <= 0 and not worth

    def _finish(self, pair: Pair) -> None:
        record = pair.record(self.rule.foreign_share, self.test.expected_sd)
        self.block_pairs += len(pair.blocks.log_ratios)
        self.disturbed += record.disturbed if record else 0
        if record:
            self.test.add(record)
        self._report(None)
        if self.rule.until_error is None and self.left > 0:
            decided = self.test.decide(self.left)
            if decided and decided[0] is Decision.ACCEPT:
                pair.count_evaluated(min(_EVALUATING_SECONDS, self.left / 2))

    def _report(self, level: Level | None) -> None:
        if self.on_progress is not None:
            note = f"pair {len(self.test.pairs) + (level is not None)}"
            self.on_progress(note, self.test.estimate(level))


def compare(
    start: Start,
    incumbent: Plan,
    candidate: Plan,
    rule: Rule,
    *,
    clock: Clock,
    deadline: float = float("inf"),
    noise: Noise | None = None,
    rng: np.random.Generator | None = None,
    on_progress: OnProgress | None = None,
    earlier: Sequence[PairOfProcesses] = (),
) -> Comparison:
    """Measures how much faster ``candidate`` trains than ``incumbent``.

    A side that fails is a result (``decision`` is ``failed``, ``failure`` names the side), never an
    exception. No process is left behind.

    Args:
        start: starts an arm; ``autoopt.search.compare.arm.Start``.
        incumbent, candidate: the two plans.
        rule: when to end.
        clock: seconds, the run's own clock.
        deadline: on that clock; the comparison ends at the earlier of it and ``rule.max_seconds``, of which only
            the deadline holds for the first two pairs of a comparison ``until_error``.
        noise: the A/A control, with the between-process variance and the floor; None before there is one.
        rng: decides order; seeded by the caller.
        on_progress: told after every block pair.
        earlier: pairs of processes of the same two plans, from a comparison that was left undecided and now goes
            on; ``noise`` is then what was known before them.
    """
    sides: dict[SideName, SideStatistics] = {
        "incumbent": SideStatistics(incumbent),
        "candidate": SideStatistics(candidate),
    }
    comparing = _Comparing(
        start,
        sides,
        SequentialTest(rule, noise, earlier),
        clock,
        deadline,
        rng or np.random.default_rng(0),
        on_progress,
    )
    failure = None
    try:
        decision, reason = comparing.run()
    except SideFailedError as failed:
        failure = failed.failure
        decision, reason = Decision.FAILED, failure.reason
        if failed.side == "incumbent":
            reason = f"{failure.reason} (the incumbent, not the candidate)"
    return documented(
        comparing.test,
        comparing.sides,
        (decision, reason),
        failure,
        seconds=clock() - comparing.began,
        disturbed_share=comparing.disturbed / comparing.block_pairs if comparing.block_pairs else None,
        mode=comparing.mode,
    )


def documented(
    test: SequentialTest,
    sides: Mapping[SideName, SideStatistics],
    decided: tuple[Decision, str],
    failure: SideFailure | None = None,
    *,
    seconds: float,
    disturbed_share: float | None,
    mode: Mode = "interleaved",
) -> Comparison:
    """The document of a comparison that has ended."""
    incumbent, candidate = sides["incumbent"].side(), sides["candidate"].side()
    compiler = candidate.startup.compiler if candidate.startup is not None else None
    decision, reason = decided
    return Comparison(
        decision=decision,
        reason=f"{reason}; {compiler}" if compiler else reason,
        estimate=test.estimate(),
        e_value=test.e_value(),
        pairs=tuple(test.pairs),
        incumbent=incumbent,
        candidate=candidate,
        failure=failure,
        seconds=seconds,
        measured_seconds=incumbent.seconds + candidate.seconds,
        disturbed_share=disturbed_share,
        between_process_sd=test.between_process_sd,
        mode=mode,
    )
