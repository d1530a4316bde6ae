"""Trainings to the target: durable, each plan and seed once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol, TypeVar

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Plan, Record
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.interleaved import TrainedPair
from autoopt.search.trial_runner import TrialRunner

R = TypeVar("R", bound=Record)
Clock = Callable[[], float]

PATIENCE = 1.75
"""A candidate may take this many times the baseline's seconds before its training is cut off as censored."""


class Steps(Protocol):
    """The part that trainings use of ``autoopt.storage.run.Run``."""

    def step(self, kind: str, key: JsonDict, measure: Callable[[], R], model: type[R]) -> R: ...


class Trainings:
    """Trains plans to the target and remembers.

    Args:
        runner: starts trials.
        steps: makes a training durable.

    Attributes:
        target: the metric's value; None trains to the limit.
        max_steps: where there is no target, the steps that each training has; None: as many as its seconds allow.
        limit_seconds: cuts a training off.
        expected_seconds: what one training costs, its start included; to plan by.
    """

    def __init__(self, runner: TrialRunner, steps: Steps) -> None:
        self._runner, self._steps = runner, steps
        self.target: float | None = None
        self.max_steps: int | None = None
        self.limit_seconds = 60.0
        self.expected_seconds = 60.0
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
            max_seconds: cuts it off earlier than the usual limit.
            keep: a folder for its weights at start, middle and end; none are kept where empty.

        Raises:
            TrialFailed: the trial ended badly.
        """
        known = self._runs.get((plan.key, seed))
        if known is not None:
            return known
        key = {"purpose": purpose, "plan": plan.model_dump(mode="json"), "seed": seed, "target": self.target}
        label = purpose.replace(" ", "-")
        try:
            run = self._steps.step(
                "training",
                key,
                lambda: self._runner.train(
                    plan,
                    seed=seed,
                    max_seconds=min(self.limit_seconds, max_seconds),
                    max_steps=self.max_steps,
                    label=label,
                    target=self.target,
                    keep=keep,
                ),
                TrainingRun,
            )
        except TrialFailed as failure:
            self._failures[plan.key] = failure
            raise
        self._runs[plan.key, seed] = run
        return run

    def in_turns(
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
        """Baseline and plan trained from that seed, in turns: a paired measurement of whole trainings.

        Args:
            beyond: share of the steps to the target that both are trained on thereafter.
            keep: a folder for the baseline's weights at start, middle and end; none are kept where empty.
            remember: both runs answer for their plans from then on, as those of :meth:`get` do.
            max_seconds: of each one's own, where that is less than the usual limit.

        Raises:
            TrialFailed: the plan's training ended badly, or the baseline's did.
        """
        plans = {"baseline": baseline.model_dump(mode="json"), "plan": plan.model_dump(mode="json")}
        try:
            pair = self._steps.step(
                "trainings",
                {"purpose": purpose, **plans, "seed": seed, "target": self.target, "beyond": beyond},
                lambda: self._runner.train_in_turns(
                    baseline,
                    plan,
                    seed=seed,
                    max_seconds=min(self.limit_seconds, max_seconds),
                    max_steps=self.max_steps,
                    label=purpose.replace(" ", "-"),
                    seconds=self.expected_seconds,
                    speedup=speedup,
                    target=self.target,
                    beyond=beyond,
                    keep=keep,
                ),
                TrainedPair,
            )
        except TrialFailed as failure:
            if getattr(failure, "side", 1) == 1:
                self._failures[plan.key] = failure
            raise
        self._pairs[baseline.key, plan.key, seed] = pair
        if remember:
            self._runs[baseline.key, seed], self._runs[plan.key, seed] = pair.baseline, pair.best
        return pair

    def pair(self, baseline: Plan, plan: Plan, seed: int) -> TrainedPair | None:
        """Their trainings in turns from that seed; None where there were none."""
        return self._pairs.get((baseline.key, plan.key, seed))

    def pairs(self, baseline: Plan, plan: Plan) -> tuple[TrainedPair, ...]:
        """All of their trainings in turns, by seed."""
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
