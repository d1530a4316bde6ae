"""Looks at candidates in turn against one incumbent that stays alive: seconds each, to find, never to prove.

A look starts one process of the candidate and measures it block by block against the incumbent's, which is frozen
between blocks and between looks. A look is one pair of processes: how processes of one program differ is in its
interval, so that it refuses what is plainly slow and never accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log, sqrt

import numpy as np

from autoopt.records import Estimate, Noise, Plan
from autoopt.records.messages import Block
from autoopt.search.compare.comparison import Comparison, Decision, Rule, SideFailure, SideName
from autoopt.search.compare.pairs import Pair, SideFailedError
from autoopt.search.compare.sequential_test import SequentialTest
from autoopt.search.compare.side_statistics import SideStatistics
from autoopt.search.live_incumbent import LiveIncumbent

MOST_BLOCKS = 10
"""Block pairs of a look at most: more of them serve less than another process would."""

AGED = 0.05
"""Change of an incumbent's step (log) since its first blocks, from which on each candidate gets a fresh one. Pages that
it keeps by now, kernels that it has found, may be a fifth of a step, and a candidate that was just started has neither.
"""
_YOUNG = 3
"""Blocks that are compared for it, first and last."""
_ERRORS = 3.0
"""Standard errors by which the two must differ: blocks of a noisy machine do so by chance."""
_BURDENED = 0.15
"""Seconds of other programs for a second of a block, above its usual, from which on it says nothing of age."""
_TWICE = 2
"""Incumbents that have aged, from which on each candidate gets a fresh one: one may have met a burst of other programs,
and every further start is paid for."""

OnProgress = Callable[[str, Estimate | None], None]


class Race(LiveIncumbent):
    """Candidates against one live incumbent, each in a process of its own.

    Attributes:
        places: how many looks are measured at the same time.
        one_at_a_time: incumbent and a candidate did not fit onto the device together.
    """

    places = 1
    one_at_a_time = False
    _young_step: float | None = None
    _aged_incumbents = 0

    def look(
        self, candidate: Plan, noise: Noise, *, warm_up_seconds: float, on_progress: OnProgress | None = None
    ) -> Comparison:
        """One pair of processes. ``inconclusive``, ``reject``, ``harmful`` or ``failed``; never ``accept``.

        Args:
            noise: the A/A control and what was learned since.
            warm_up_seconds: the most that either side may take to become steady.
        """
        older, began, aged = self._live is not None, self._clock(), self._aged_incumbents
        seen = self._look(candidate, noise, warm_up_seconds, on_progress, began)
        if older and self._aged_incumbents > aged and seen.failure is None:  # against one as old as itself
            seen = self._look(candidate, noise, warm_up_seconds, on_progress, began)
        return seen

    def _look(
        self, candidate: Plan, noise: Noise, warm_up_seconds: float, on_progress: OnProgress | None, began: float
    ) -> Comparison:
        sides: dict[SideName, SideStatistics] = {
            "incumbent": SideStatistics(self.incumbent),
            "candidate": SideStatistics(candidate),
        }
        rule = self._rule.model_copy(update={"warm_up_seconds": warm_up_seconds})
        test = SequentialTest(rule, noise)
        pair = Pair(self._start, sides, rule, self._rng, self._clock, self._live)
        fresh, self._live = self._live is None, None
        failure: SideFailure | None = None
        try:
            pair.open()
            self._measure(pair, test, rule, on_progress)
            aged = self._aged(sides["incumbent"])
            self._aged_incumbents += aged
            self._live = None if aged or self._aged_incumbents >= _TWICE else pair.release()
        except SideFailedError as failed:
            self.one_at_a_time = self.one_at_a_time or (failed.error.for_want_of_room and failed.both_alive)
            self._live = pair.release() if failed.side == "candidate" else None
            failure = failed.failure
        finally:
            pair.close()
        return self._document(test, sides, failure, began, fresh)

    def _aged(self, incumbent: SideStatistics) -> bool:
        """Whether the incumbent's process steps faster or slower by now than in its first blocks."""
        seconds = _undisturbed(incumbent.blocks)
        if len(seconds) < _YOUNG:
            return False
        if self._young_step is None:
            self._young_step = float(np.median(seconds[:_YOUNG]))
        scatter = float(np.median(np.abs(np.diff(np.log(seconds))))) / (0.6745 * sqrt(2))
        error = 1.25 * scatter * sqrt(2 / _YOUNG)  # of the difference of two medians
        return abs(log(float(np.median(seconds[-_YOUNG:])) / self._young_step)) > max(AGED, _ERRORS * error)

    def _measure(self, pair: Pair, test: SequentialTest, rule: Rule, on_progress: OnProgress | None) -> None:
        while True:
            pair.block_pair()
            level = pair.blocks.level(rule.foreign_share, test.expected_sd)
            if on_progress is not None:
                on_progress("a look at it", test.estimate(level))
            count = len(pair.blocks.log_ratios)
            cost = (self._clock() - pair.ready_at) / count
            if count >= MOST_BLOCKS or test.enough(level, pair.ready_at - pair.began, cost):
                break
        record = pair.record(rule.foreign_share, test.expected_sd)
        if record:
            test.add(record)

    def _document(
        self,
        test: SequentialTest,
        sides: dict[SideName, SideStatistics],
        failure: SideFailure | None,
        began: float,
        fresh: bool,
    ) -> Comparison:
        decided = test.decide(0.0) or (Decision.INCONCLUSIVE, "too few blocks")
        if failure is not None:
            decided = Decision.FAILED, failure.reason
        incumbent, candidate = sides["incumbent"].side(), sides["candidate"].side()
        return Comparison(
            decision=decided[0],
            reason=decided[1],
            estimate=test.estimate(),
            pairs=tuple(test.pairs),
            incumbent=incumbent,
            candidate=candidate,
            failure=failure,
            seconds=self._clock() - began,
            measured_seconds=incumbent.seconds + candidate.seconds,
            between_process_sd=test.between_process_sd,
            fresh=fresh,
        )


def _undisturbed(blocks: Sequence[Block]) -> list[float]:
    """Seconds of a step in each block that other programs left alone, in their order."""
    foreign = [(block.foreign_cpu_seconds or 0.0) / block.seconds for block in blocks]
    usual = float(np.median(foreign)) if foreign else 0.0
    kept = (block for block, share in zip(blocks, foreign, strict=True) if share <= usual + _BURDENED)
    return [block.seconds / max(block.steps, 1) for block in kept]
