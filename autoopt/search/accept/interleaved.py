"""Baseline and final plan trained to the target in turns: both alive, the idle one frozen, each one's own seconds.

Whole trainings one after the other compare a machine with itself an hour later. In turns, a machine that drifts drifts
for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import ceil, exp, sqrt
from typing import Any, Protocol

import numpy as np
from scipy.stats import t as student

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, JsonDict, Record
from autoopt.records.messages import TrainingRun

TRAIN_LEG = "autoopt.benchmark.tasks:train_leg"
LEG_SECONDS = 1.0
_LEGS = 40
NO_FURTHER = 1.25
"""Of the steps at which the baseline's time was up before the target, for the plan: noise may take it there later."""
SCATTER, SCATTER_DOF = 0.1, 3.0
"""A first guess of how the log ratio of two whole trainings scatters from pair to pair, and how many pairs it is worth.
A tenth covers steps that differ by seed, a slow start of one process in five, and a plan whose processes differ more
than the baseline's: ``python -m benchmarks.truth.headline_coverage``."""


class Process(Protocol):
    """The part of ``autoopt.trial.parent.TrialProcess`` that takes turns."""

    def call(self, task: str, *, timeout: float | None = None, **arguments: Any) -> JsonDict: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def close(self) -> None: ...


class TrainedPair(Record):
    """Both trainings from one seed. ``interleaved``: in turns; False where they did not fit into memory together."""

    baseline: TrainingRun
    best: TrainingRun
    interleaved: bool = True


class Turns:
    """Two trainings that take turns.

    Args:
        processes: of baseline and plan, started; each is frozen while the other trains.
        arguments: of ``autoopt.benchmark.tasks.train``, such as the target.
        seconds: what a training of the baseline takes, about.
        speedup: of the plan over the baseline, about, so that both end at about the same time.
        keep: a folder for the baseline's weights; none are kept where empty.
    """

    def __init__(
        self,
        processes: tuple[Process, Process],
        arguments: JsonDict,
        seconds: float,
        speedup: float = 1.0,
        keep: str = "",
    ) -> None:
        self._processes, self._arguments = processes, ({**arguments, "keep": keep} if keep else arguments, arguments)
        leg = max(LEG_SECONDS, seconds / _LEGS)
        self._legs = [leg, leg / max(speedup, 0.1)]
        self._rates = [0.0, 0.0]
        self._no_further: list[int] | None = None
        self._runs: list[TrainingRun | None] = [None, None]

    def run(self, first: int) -> tuple[TrainingRun, TrainingRun]:
        """Trains both to their end, in the order ABBA from ``first`` on.

        Raises:
            TrialFailed: one ended badly; its attribute ``side`` says which (0: the baseline).
        """
        for process in self._processes:
            _freeze(process)
        order = [first, 1 - first, 1 - first, first]
        while None in self._runs:
            for side in order:
                if self._runs[side] is None:
                    self._leg(side)
        before, after = self._runs
        assert before is not None
        assert after is not None
        return before, after

    def _leg(self, side: int) -> None:
        process, seconds, arguments = self._processes[side], self._legs[side], self._arguments[side]
        timeout = 600.0 + 20 * seconds + 2 * float(arguments.get("max_seconds", 0.0))
        if getattr(process, "can_freeze", True):
            process.thaw()
        try:
            answer = process.call(TRAIN_LEG, timeout=timeout, seconds=seconds, no_further=self._no_further, **arguments)
        except TrialFailed as failure:
            failure.side = side  # type: ignore[attr-defined]
            raise
        self._keep_pace(side, answer)
        if answer["over"]:
            run = self._runs[side] = TrainingRun.model_validate(answer["run"])
            if side == 0 and run.stopped == "seconds":
                self._no_further = [no_further(run), run.steps]
            process.close()
        else:
            _freeze(process)

    def _keep_pace(self, side: int, answer: JsonDict) -> None:
        """Legs of as many steps: a plan that runs ahead of what was thought is evaluated past the baseline's end."""
        if answer.get("steps") and answer["seconds"]:
            self._rates[side] = answer["steps"] / answer["seconds"]
        if all(self._rates):
            self._legs[1] = self._legs[0] * self._rates[0] / self._rates[1]


def no_further(baseline: TrainingRun) -> int:
    """The step at which a plan's training ends, whose baseline's time was up before the target."""
    return ceil(NO_FURTHER * max(baseline.steps, 1))


def _freeze(process: Process) -> None:
    if getattr(process, "can_freeze", True):
        with suppress(TrialFailed):
            process.freeze()


def ratio_of_pairs(logs: Sequence[float], process_sd: float | None = None) -> Estimate:
    """A ratio over pairs of trainings, with Student's t interval.

    The spread is that of the pairs with :data:`SCATTER` as a guess beforehand: two pairs alone would give an interval
    ten times too wide or one that is false. Of one pair the interval is the guess alone.

    Args:
        logs: log ratio of each pair, one at least.
        process_sd: how much two processes of one program differ (standard deviation of the log ratio), where that is
            known to be more than the guess.
    """
    value, error, dof = _level(logs, process_sd)
    reach = _quantile(dof) * error / sqrt(len(logs))
    return Estimate(value=exp(value), low=exp(value - reach), high=exp(value + reach), n=len(logs))


def next_session(logs: Sequence[float], process_sd: float | None = None) -> Estimate:
    """The ratio that the next session is expected to measure, with a 95 % prediction interval.

    Args:
        logs: mean log ratio of each session, two at least.
        process_sd: as in :func:`ratio_of_pairs`.
    """
    value, error, dof = _level(logs, process_sd)
    reach = _quantile(dof) * error * sqrt(1 + 1 / len(logs))
    return Estimate(value=exp(value), low=exp(value - reach), high=exp(value + reach), n=len(logs))


def _level(logs: Sequence[float], process_sd: float | None) -> tuple[float, float, float]:
    """Mean, standard deviation of one value, and degrees of freedom."""
    values, guess = np.asarray(logs, dtype=np.float64), max(process_sd or 0.0, SCATTER)
    dof = SCATTER_DOF + len(values) - 1
    square = SCATTER_DOF * guess**2 + float(np.sum((values - values.mean()) ** 2))
    return float(values.mean()), sqrt(square / dof), dof


@lru_cache
def _quantile(dof: float) -> float:
    return float(student.ppf(0.975, dof))
