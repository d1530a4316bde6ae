"""Looks on several places at once: to whoever asks for them one by one, a race as any other.

What will be asked for next is told beforehand (``expect``), and is measured while the present look is. The search keeps
its order: a look that was measured ahead is told when its turn comes, and only then is it a step of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from autoopt.errors import Interrupted
from autoopt.records import Noise, Plan
from autoopt.search.compare.arena import Clock, LiveArm
from autoopt.search.compare.arm import Arm
from autoopt.search.compare.comparison import Comparison, Rule
from autoopt.search.compare.contest import OnProgress
from autoopt.search.race import Race
from autoopt.search.time_limits import TimeLimits
from autoopt.trial.places import Workers

AHEAD = 2
"""Looks for each place that are begun or waiting: a place that is done early has another."""


class Runner(Protocol):
    """A trial runner of one place."""

    limits: TimeLimits
    latest_log: str | None

    def start(self, plan: Plan, label: str) -> Arm: ...


@dataclass(frozen=True)
class Expected:
    """A look that will be asked for: its plan, and the limits of its start."""

    plan: Plan
    limits: TimeLimits


@dataclass(frozen=True)
class _Seen:
    comparison: Comparison
    log: str | None
    one_at_a_time: bool


class ParallelRace:
    """Candidates against live processes of the incumbent, one on each place.

    Args:
        main: the runner of the search, whose limits hold for what was not expected, and which is told the logs.
        runners: one for each place.
        incumbent: its plan.
        rule: block length, ramp, and the gain worth having.
        workers: makes the workers that fill the places.
        begun: workers that have started ``live``, whose processes may not outlive them.
        clock: seconds.
        seed: decides order.
        live: processes of the incumbent that are alive and frozen, one for each place, or none.

    Attributes:
        one_at_a_time: incumbent and a candidate did not fit onto one device together.
    """

    def __init__(
        self,
        main: Runner,
        runners: Sequence[Runner],
        incumbent: Plan,
        rule: Rule,
        *,
        workers: Callable[[], Workers],
        clock: Clock,
        seed: Sequence[int],
        live: Sequence[LiveArm] = (),
        begun: Workers | None = None,
    ) -> None:
        self._main, self._runners, self.incumbent, self._make = main, list(runners), incumbent, workers
        self._workers = begun
        self.one_at_a_time = False
        self._waiting: dict[str, Future[_Seen]] = {}
        alive: list[LiveArm | None] = [*live] or [None] * len(self._runners)
        self._races = [
            Race(each.start, incumbent, rule, clock=clock, rng=np.random.default_rng([*seed, number]), live=arm)
            for number, (each, arm) in enumerate(zip(self._runners, alive, strict=True))
        ]

    @property
    def places(self) -> int:
        """How many looks are measured at the same time."""
        return len(self._races)

    def expect(self, looks: Iterable[Expected], noise: Noise, *, warm_up_seconds: float) -> None:
        """Begins looks that will be asked for, in this order, as far as there are places for them soon."""
        for look in looks:
            if len(self._waiting) >= AHEAD * self.places:
                return
            if look.plan.key not in self._waiting:
                self._begin(look, noise, warm_up_seconds)

    def look(
        self, candidate: Plan, noise: Noise, *, warm_up_seconds: float, on_progress: OnProgress | None = None
    ) -> Comparison:
        """The look at a candidate, waited for; measured now where it was not expected. See ``Race.look``."""
        if candidate.key not in self._waiting:
            self._begin(Expected(candidate, self._main.limits), noise, warm_up_seconds)
        future = self._waiting.pop(candidate.key)
        try:
            seen = future.result()
        except (Interrupted, KeyboardInterrupt):
            self._end(wait=False)  # the launcher ends what is still measured
            raise
        self._main.latest_log = seen.log
        self.one_at_a_time = self.one_at_a_time or seen.one_at_a_time
        return seen.comparison

    def _begin(self, look: Expected, noise: Noise, warm_up_seconds: float) -> None:
        def measure(place: int) -> _Seen:
            runner, race = self._runners[place], self._races[place]
            runner.limits = look.limits
            seen = race.look(look.plan, noise, warm_up_seconds=warm_up_seconds)
            return _Seen(seen, runner.latest_log, race.one_at_a_time)

        self._workers = self._workers or self._make()
        self._waiting[look.plan.key] = self._workers.submit(measure)

    def _end(self, wait: bool) -> None:
        if self._workers is not None:
            self._workers.close(wait)
        self._workers = None
        self._waiting.clear()

    def close(self) -> None:
        """Drops what nobody has asked for, and ends the incumbent's processes."""
        self._end(wait=True)
        for race in self._races:
            race.close()
