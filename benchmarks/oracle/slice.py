"""One example in one invocation: what was measured, what measures, and how much time is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoopt.benchmark.target import Parts
from autoopt.records import Plan
from benchmarks.oracle import space
from benchmarks.oracle.state import OutOfTimeError, Record, State
from benchmarks.oracle.trials import Trials


@dataclass
class Slice:
    """One example in one invocation.

    Args:
        example: its name under ``examples``.
        state: all that was measured so far.
        trials: readings.
        deadline: on ``clock``; nothing starts that would end after it.
        lattice_seconds: that the whole lattice may take.
        top: how many points of the lattice are measured again.
        rounds: pairs of processes of each contestant in the final race.
        replays: 0 lets Optuna measure for itself; else its studies read the lattice's readings, from so many
            seeds, and the median choice runs in the race.
        share: of the lattice's seconds that autoopt gets.
        without: knobs that no contestant gets, each with the reason.
    """

    example: str
    state: State
    trials: Trials
    deadline: float
    lattice_seconds: float = 800.0
    top: int = 5
    rounds: int = 4
    replays: int = 0
    share: float = 0.25
    without: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    say: Callable[[str], None] = lambda text: None

    def add(self, stage: str, **fields: Any) -> Record:
        return self.state.add(self.example, stage, **fields)

    def of(self, stage: str) -> list[Record]:
        return self.state.of(self.example, stage)

    @property
    def setup(self) -> Record:
        found = self.state.one(self.example, "setup")
        assert found is not None, "the set-up comes first"
        return found

    def spare(self, seconds: float) -> None:
        """Whether so many seconds are left.

        Raises:
            OutOfTimeError: they are not.
        """
        if self.clock() + seconds > self.deadline:
            raise OutOfTimeError

    def plan(self, point: space.Point) -> Plan:
        return space.plan_of(point, self.setup["knobs"], self.trials.registry)


def seconds_to_target(setup: Record, fixed: float, step: float) -> float:
    """Of a change that takes the baseline's steps and evaluations."""
    parts = Parts(fixed, step, setup["steps"], setup["evaluation_seconds"], setup["evaluate_every"])
    return parts.seconds
