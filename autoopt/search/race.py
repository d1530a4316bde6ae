"""Screening measurements against one incumbent process that lives on: seconds each, to find, never to confirm.

Each starts one process of the candidate and measures it block by block against the incumbent's, which is frozen between
blocks and between measurements. It is one pair of processes: how processes of one program differ is in its interval,
so that it refuses what is plainly slow and never accepts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np

from autoopt.records import Noise, Plan
from autoopt.records.messages import Block
from autoopt.search.compare.arena import Clock, LiveArm, Source
from autoopt.search.compare.arm import Start
from autoopt.search.compare.comparison import Comparison, Rule
from autoopt.search.compare.contest import Contest, OnProgress

MOST_ROUNDS = 10
"""Of a screening measurement: more of them serve less than another process would."""

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


@dataclass
class LiveIncumbent:
    """The incumbent's frozen process, for whoever measures next."""

    arm: LiveArm | None = None

    def take(self) -> LiveArm | None:
        """The process, which belongs to whoever asks from here on; None where there is none."""
        live, self.arm = self.arm, None
        return live

    def close(self) -> None:
        """Ends the process."""
        live = self.take()
        if live is not None:
            live.close()


class Race:
    """Candidates against one live incumbent, each in a process of its own.

    Args:
        start: starts a process.
        incumbent: its plan.
        rule: block length, ramp, and the gain worth having.
        clock: seconds.
        rng: decides order.
        live: a process of the incumbent that is alive and frozen; started with the first measurement where None.

    Attributes:
        places: how many candidates are measured at the same time.
        one_at_a_time: incumbent and a candidate did not fit onto the device together.
    """

    places = 1

    def __init__(
        self,
        start: Start,
        incumbent: Plan,
        rule: Rule,
        *,
        clock: Clock,
        rng: np.random.Generator,
        live: LiveArm | None = None,
    ) -> None:
        self._start, self._clock, self._rng, self.incumbent = start, clock, rng, incumbent
        self._rule = rule.model_copy(update={"max_pairs": 1, "max_seconds": inf})
        self._live = LiveIncumbent(live)
        self.one_at_a_time = False
        self._young_step: float | None = None
        self._aged_incumbents = 0

    def look(
        self, candidate: Plan, noise: Noise, *, warm_up_seconds: float, on_progress: OnProgress | None = None
    ) -> Comparison:
        """One pair of processes. ``inconclusive``, ``reject``, ``harmful`` or ``failed``; never ``accept``.

        Args:
            noise: the A/A control and what was learned since.
            warm_up_seconds: the most that either side may take to become steady.
        """
        older, aged = self._live.arm is not None, self._aged_incumbents
        seen = self._look(candidate, noise, warm_up_seconds, on_progress)
        if older and self._aged_incumbents > aged and seen.failure is None:  # against one as old as itself
            again = self._look(candidate, noise, warm_up_seconds, on_progress)
            seen = again.model_copy(update={"seconds": seen.seconds + again.seconds})
        return seen

    def _look(
        self, candidate: Plan, noise: Noise, warm_up_seconds: float, on_progress: OnProgress | None
    ) -> Comparison:
        contest = Contest(
            Source(self._start, self._live.take()),
            self.incumbent,
            [candidate],
            "incumbent",
            self._rule.model_copy(update={"warm_up_seconds": warm_up_seconds}),
            clock=self._clock,
            noise=noise,
            rng=self._rng,
            most_rounds=MOST_ROUNDS,
            on_progress=on_progress,
            keep_live=True,
            alternating=self.one_at_a_time,
        )
        (seen,) = contest.run()
        assert seen is not None
        self.one_at_a_time = self.one_at_a_time or contest.for_want_of_room
        aged = self._aged(contest.shared_blocks)
        self._aged_incumbents += aged
        self._live.arm = contest.live
        if aged or self._aged_incumbents >= _TWICE:
            self._live.close()
        return seen

    def _aged(self, blocks: Sequence[Block]) -> bool:
        """Whether the incumbent's process steps faster or slower by now than in its first blocks."""
        seconds = _undisturbed(blocks)
        if len(seconds) < _YOUNG:
            return False
        if self._young_step is None:
            self._young_step = float(np.median(seconds[:_YOUNG]))
        scatter = float(np.median(np.abs(np.diff(np.log(seconds))))) / (0.6745 * sqrt(2))
        error = 1.25 * scatter * sqrt(2 / _YOUNG)  # of the difference of two medians
        return abs(log(float(np.median(seconds[-_YOUNG:])) / self._young_step)) > max(AGED, _ERRORS * error)

    def hand_over(self) -> LiveArm | None:
        """The incumbent's live process, which belongs to whoever asks from here on; None where there is none."""
        return self._live.take()

    def close(self) -> None:
        """Ends the incumbent's process."""
        self._live.close()


def _undisturbed(blocks: Sequence[Block]) -> list[float]:
    """Seconds of a step in each block that other programs left alone, in their order."""
    foreign = [(block.foreign_cpu_seconds or 0.0) / block.seconds for block in blocks]
    usual = float(np.median(foreign)) if foreign else 0.0
    kept = (block for block, share in zip(blocks, foreign, strict=True) if share <= usual + _BURDENED)
    return [block.seconds / max(block.steps, 1) for block in kept]
