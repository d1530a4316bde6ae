"""The search of hyper-parameters: what was tried, how far each came, and what was best."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.record import Record


class TuningTrial(Record):
    """A training with some values.

    ``state``: it reached the target, did not within the steps, was pruned at a level, or failed. ``points``: step and
    metric of its evaluations. ``seconds_to_target``: its steps at the baseline's seconds for a step, evaluations
    included.
    """

    number: int
    values: dict[str, float]
    state: Literal["reached", "not_reached", "pruned", "failed"]
    reason: str = ""
    steps: int = 0
    steps_to_target: int | None = None
    seconds_to_target: float | None = None
    cost_to_target: float | None = None
    metric: float | None = None
    points: tuple[tuple[int, float], ...] = ()


class Tuning(Record):
    """The search. ``space``: as it was asked for; ``own``: the workload's own values of it; ``seed``: of all trials.

    ``rungs``: steps at which hopeless trials end. ``default``, ``best``: numbers of trials: the workload's own values,
    and the first to the target. ``importance``: shares of the parameters in what differs between trials; None where
    there are too few, which ``note`` says.
    """

    space: tuple[str, ...]
    metric: str | None = None
    target: float | None = None
    seed: int
    rungs: tuple[int, ...] = ()
    trials: tuple[TuningTrial, ...] = ()
    default: int | None = None
    best: int | None = None
    importance: dict[str, float] | None = None
    note: str = ""
    seconds: float = 0.0
    own: dict[str, float] = field(default_factory=dict)

    def trial(self, number: int | None) -> TuningTrial | None:
        return next((trial for trial in self.trials if trial.number == number), None)
