"""Trainings to the target: durable, each plan and seed once; baseline and plan alternately, the idle one frozen.

Whole trainings one after the other compare a machine with itself an hour later. Interleaved, a drifting machine drifts
for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from math import exp, hypot, sqrt
from typing import Any, Protocol, TypeVar

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.records import Estimate, JsonDict, Plan, Record
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import TrainedPair
from autoopt.search.compare.statistics import student_reach
from autoopt.search.trial_runner import TrialRunner

R = TypeVar("R", bound=Record)

PATIENCE = 1.75
"""A candidate may take this many times the baseline's seconds before its training is cut off as censored."""

SCATTER, SCATTER_DOF = 0.1, 3.0
"""A first guess of how the log ratio of two whole trainings scatters from pair to pair, and how many pairs it is worth.
A tenth covers steps that differ by seed, a slow start of one process in five, and a plan whose processes differ more
than the baseline's: ``python -m benchmarks.truth.headline_coverage``."""
TURNS_SCATTER = 0.04
"""The same of whole runs that take turns of a second: the likeliest for 32 searches (each 0.005 to 0.15)."""


def ratio_of_pairs(
    logs: Sequence[float], process_sd: float | None = None, *, time_sliced: bool = False, length: float = 0.0
) -> Estimate:
    """The geometric mean of a ratio over pairs of trainings, or of their seconds, with Student's t interval.

    The spread is that of the pairs with :data:`SCATTER` as a guess beforehand: two pairs alone would give an interval
    ten times too wide or one that is false. Of one pair the interval is the guess alone.

    Args:
        logs: log ratio of each pair, one at least.
        process_sd: how much two processes of one program differ (standard deviation of the log ratio), where that is
            known to be more than the guess.
        time_sliced: they are whole runs that took turns on the CPU, so that both saw the same machine.
        length: how much it scatters with the length of runs that end by their result.
    """
    guess = TURNS_SCATTER if time_sliced else max(process_sd or 0.0, SCATTER)
    return _estimate(logs, hypot(guess, length), 1 / len(logs))


def next_session(logs: Sequence[float], process_sd: float | None = None) -> Estimate:
    """The ratio that the next session is expected to measure, with its 95 % prediction interval, by two or more."""
    return _estimate(logs, max(process_sd or 0.0, SCATTER), 1 + 1 / len(logs))


def _estimate(logs: Sequence[float], guess: float, variances: float) -> Estimate:
    """The mean, with an error of so many variances of one value."""
    values = np.asarray(logs, dtype=np.float64)
    value, dof = float(values.mean()), SCATTER_DOF + len(values) - 1
    square = SCATTER_DOF * guess**2 + float(np.sum((values - value) ** 2))
    reach = student_reach(dof) * sqrt(square / dof * variances)
    return Estimate(value=exp(value), low=exp(value - reach), high=exp(value + reach), n=len(values))


class Steps(Protocol):
    """The part that trainings use of ``autoopt.storage.run.Run``."""

    def step(self, kind: str, key: JsonDict, measure: Callable[[], R], model: type[R]) -> R: ...


class Trainings:
    """Trains plans to the target and remembers.

    Attributes:
        target: the metric's value; None trains to the limit.
        max_steps: where there is no target, the steps that each training has; None: as many as its seconds allow.
        limit_seconds: cuts a training off; ``expected_seconds``: what one costs, its start included; to plan by.
        evaluate_every: steps between evaluations of a script that ends by itself at the target; None of any other.
        run_steps: of a whole run of any other script.
    """

    def __init__(self, runner: TrialRunner, steps: Steps) -> None:
        self._runner, self._steps = runner, steps
        self.target: float | None = None
        self.max_steps: int | None = None
        self.limit_seconds = 60.0
        self.expected_seconds = 60.0
        self.evaluate_every: float | None = None
        self.run_steps = 0
        self._runs: dict[tuple[str, int], TrainingRun] = {}
        self._pairs: dict[tuple[str, str, int], TrainedPair] = {}
        self._failures: dict[str, TrialFailed] = {}

    def has(self, plan: Plan, seed: int) -> bool:
        """Whether there is nothing more to learn: it is trained, or the plan fails."""
        return (plan.key, seed) in self._runs or plan.key in self._failures

    def failure(self, plan: Plan) -> TrialFailed | None:
        """How a training of that plan ended badly, if one did."""
        return self._failures.get(plan.key)

    def get(self, plan: Plan, seed: int, *, purpose: str, keep: str = "", max_seconds: float = math.inf) -> TrainingRun:
        """A training from that seed, measured where it is not known.

        Args:
            keep: a folder for its weights at start, middle and end; none are kept where empty.
            max_seconds: cuts it off earlier than the usual limit.

        Raises:
            TrialFailed: the trial ended badly.
        """
        known = self._runs.get((plan.key, seed))
        if known is not None:
            return known
        key = {"purpose": purpose, "plan": plan.model_dump(), "seed": seed, "target": self.target}
        train = partial(self._runner.train, plan, seed=seed, keep=keep, **self._limits(purpose, max_seconds))
        try:
            run = self._runs[plan.key, seed] = self._steps.step("training", key, train, TrainingRun)
        except TrialFailed as failure:
            self._failures[plan.key] = failure
            raise
        return run

    def interleaved(
        self,
        baseline: Plan,
        plan: Plan,
        seed: int,
        *,
        purpose: str,
        speedup: float = 1.0,
        beyond: float = 0.0,
        keep: str = "",
        remember: bool = False,
        max_seconds: float = math.inf,
    ) -> TrainedPair:
        """Baseline and plan trained from that seed, alternately: a paired measurement of whole trainings.

        ``beyond``: share of the steps to the target that both are trained on thereafter; ``remember``: both runs answer
        for their plans from then on, as those of :meth:`get` do, where ``keep`` and ``max_seconds`` are described.

        Raises:
            TrialFailed: the plan's training ended badly, or the baseline's did.
        """
        train = partial(
            self._runner.train_interleaved,
            seed=seed,
            seconds=self.expected_seconds,
            speedup=speedup,
            beyond=beyond,
            keep=keep,
            **self._limits(purpose, max_seconds),
        )
        key = {"purpose": purpose, "target": self.target, "beyond": beyond}
        return self._paired(baseline, plan, seed, key, train, remember)

    def _limits(self, purpose: str, max_seconds: float) -> dict[str, Any]:
        """What all trainings have in common, and the name of their logs."""
        seconds = min(self.limit_seconds, max_seconds)
        label = purpose.replace(" ", "-")
        return {"label": label, "max_seconds": seconds, "max_steps": self.max_steps, "target": self.target}

    def whole_run(
        self, baseline: Plan, seed: int, *, steps: int, every: float | None, max_seconds: float
    ) -> TrainingRun:
        """A whole run of the untouched script, which may end before its steps; it answers for the baseline.

        Raises:
            TrialFailed: it ended badly, or was not at its end in time.
        """
        key = {"purpose": "baseline whole run", "plan": baseline.model_dump(), "seed": seed}
        train = partial(self._runner.whole_run, steps=steps, every=every, seed=seed, max_seconds=max_seconds)
        run = self._runs[baseline.key, seed] = self._steps.step("training", key, train, TrainingRun)
        return run

    def whole_runs(
        self,
        baseline: Plan,
        plan: Plan,
        seed: int,
        *,
        purpose: str,
        max_seconds: float,
        speedup: float = 1.0,
        remember: bool = False,
    ) -> TrainedPair:
        """A whole run of the script with the patch of one plan, and of one with that of another: see
        :meth:`~autoopt.search.trial_runner.TrialRunner.whole_runs`; for ``remember`` see :meth:`interleaved`.

        Raises:
            TrialFailed: one of them ended badly, or was not at its end in time.
        """
        run = partial(
            self._runner.whole_runs,
            steps=0 if self.evaluate_every else self.run_steps,
            seed=seed,
            max_seconds=max_seconds,
            speedup=max(speedup, 1.0),
            # a run that ends by what it has reached may take several times as long from another seed
            patience=math.inf if self.evaluate_every else PATIENCE,
            every=self.evaluate_every,
        )
        return self._paired(baseline, plan, seed, {"purpose": purpose, "whole": True}, run, remember)

    def _paired(
        self,
        baseline: Plan,
        plan: Plan,
        seed: int,
        key: JsonDict,
        run: Callable[[Plan, Plan], TrainedPair],
        remember: bool,
    ) -> TrainedPair:
        known = {**key, "baseline": baseline.model_dump(), "plan": plan.model_dump(), "seed": seed}
        failed = self.failure(plan)
        if failed is not None:  # another run of it would fail alike
            raise failed
        try:
            pair = self._steps.step("trainings", known, partial(run, baseline, plan), TrainedPair)
        except TrialFailed as failure:
            if failure.side == 1 and not ("whole" in key and failure.kind == "timeout"):
                self._failures[plan.key] = failure
            raise
        self._pairs[baseline.key, plan.key, seed] = pair
        if remember:
            self._runs[baseline.key, seed], self._runs[plan.key, seed] = pair.baseline, pair.best
        return pair

    def pairs(self, baseline: Plan, plan: Plan) -> tuple[TrainedPair, ...]:
        """All of their trainings alternately, by seed."""
        found = [(seed, pair) for (*keys, seed), pair in self._pairs.items() if keys == [baseline.key, plan.key]]
        return tuple(pair for _, pair in sorted(found, key=lambda item: item[0]))

    def all_of(self, plan: Plan) -> tuple[TrainingRun, ...]:
        """One training of a plan from each seed, also of those that were forgotten or took turns with another plan."""
        found = {seed: pair.baseline for (one, _, seed), pair in self._pairs.items() if one == plan.key}
        found |= {seed: pair.best for (_, other, seed), pair in self._pairs.items() if other == plan.key}
        found |= {run.seed: run for run in self.of(plan)}
        return tuple(run for _, run in sorted(found.items()))

    def forget(self, plan: Plan) -> None:
        """So that verification trains it again, from start to end."""
        self._runs = {key: run for key, run in self._runs.items() if key[0] != plan.key}

    def of(self, plan: Plan) -> tuple[TrainingRun, ...]:
        """All trainings of a plan, by seed."""
        found = [(seed, run) for (known, seed), run in self._runs.items() if known == plan.key]
        return tuple(run for _, run in sorted(found, key=lambda item: item[0]))
