"""How far a script is to train, and what is measured on the way."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.benchmark.clock import Lap, StageClock, with_epochs
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.live import Stretch


@dataclass(kw_only=True)
class Goal(Stretch):
    """How far to train, and what is measured on the way.

    ``enough``: asked whether it is over. ``rests``: seconds for which it need not be asked again, with nothing but
    steps in between; None where every step's end is looked at closely. ``most``: steps after which it is asked in any
    case. ``looks``: it looks at more than what it is given.
    ``before``: seconds of the laps that are over. ``other``: of what followed steps. ``opening``: of waiting for the
    first batch of an epoch. ``away_now``: of ``away``, in the step under way.
    """

    enough: Enough
    rests: float | None = None
    most: int | None = None
    looks: bool = False
    steps: int = 0
    before: float = 0.0
    other: float = 0.0
    opening: float = 0.0
    away_now: float = 0.0

    def put(self, lap: Lap) -> None:
        """One more stretch of training."""
        self.laps.append(lap)
        self.before += lap.seconds

    def elapsed(self, clock: StageClock) -> float:
        return self.before + clock.elapsed()

    def lap(self) -> Lap:
        """All laps as one, with what followed the steps among ``other``, and epochs' starts as a stage of their own."""
        lap = super().lap()
        stages = {**lap.stages, "other": lap.stages.get("other", 0.0) + self.other}
        return Lap(lap.seconds, with_epochs(stages, self.opening), lap.steps)
