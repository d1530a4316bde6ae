"""How far a script is to train, and what is measured on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from autoopt.benchmark.clock import Lap, StageClock, with_epochs
from autoopt.benchmark.loss_recorder import LossRecorder
from autoopt.script.found_metric import Told

Enough = Callable[[int, float], bool]


@dataclass
class Goal:
    """How far to train, and what is measured on the way.

    ``laps``: stretches of training; what lies between them is in ``aside``, seconds by stage. ``metrics``: values of
    the metric with the step and the seconds at which each was told, evaluations included. ``lines``: that were printed
    at evaluations. ``opening``: seconds of waiting for the first batch of an epoch.
    ``before``: seconds of the stretches that are over. ``away``: for each step, seconds of it in
    which the script evaluated or saved, or was looked at. ``rests``: seconds for which ``enough`` need not be asked
    again, with nothing but steps in between; None where every step's end is looked at closely. ``most``: steps after
    which it is asked in any case. ``looks``: it looks at more than what it is given.
    """

    enough: Enough
    captured: LossRecorder
    steps: int = 0
    laps: list[Lap] = field(default_factory=list)
    aside: dict[str, float] = field(default_factory=dict)
    metrics: list[tuple[int, float, float]] = field(default_factory=list)
    lines: list[Told] = field(default_factory=list)
    other: float = 0.0
    opening: float = 0.0
    before: float = 0.0
    away: list[float] = field(default_factory=list)
    away_now: float = 0.0
    rests: float | None = None
    most: int | None = None
    looks: bool = False

    def put(self, lap: Lap) -> None:
        """One more stretch of training."""
        self.laps.append(lap)
        self.before += lap.seconds

    def elapsed(self, clock: StageClock) -> float:
        return self.before + clock.elapsed()

    def lap(self) -> Lap:
        """All laps as one, with what followed the steps among ``other``, and epochs' starts as a stage of their own."""
        stages: dict[str, float] = {}
        for lap in self.laps:
            for stage, seconds in lap.stages.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
        stages["other"] = stages.get("other", 0.0) + self.other
        stages = with_epochs(stages, self.opening)
        return Lap(sum(lap.seconds for lap in self.laps), stages, [step for lap in self.laps for step in lap.steps])
