"""Trainings to the target: durable, each plan and seed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from autoopt.errors import TrialFailed
from autoopt.measurements import TrainingRun
from autoopt.optimize.bench import Bench
from autoopt.records import JsonDict, Plan, Record

R = TypeVar("R", bound=Record)


class Steps(Protocol):
    """What is needed of ``autoopt.storage.run.Run``."""

    def step(self, kind: str, key: JsonDict, measure: Callable[[], R], model: type[R]) -> R: ...


class Trainings:
    """Trains plans to the target and remembers.

    Args:
        bench: starts trials.
        steps: makes a training durable.
        target: the metric's value; None trains to the limit.
    """

    def __init__(self, bench: Bench, steps: Steps, target: float | None = None) -> None:
        self._bench, self._steps = bench, steps
        self.target = target
        self._runs: dict[tuple[Plan, int], TrainingRun] = {}
        self.failures: dict[Plan, TrialFailed] = {}

    def get(self, plan: Plan, seed: int, *, max_seconds: float, purpose: str) -> TrainingRun:
        """A training from that seed.

        Raises:
            TrialFailed: the trial ended badly.
        """
        known = self._runs.get((plan, seed))
        if known is not None:
            return known
        key = {
            "purpose": purpose,
            "plan": plan.model_dump(mode="json"),
            "seed": seed,
            "target": self.target,
        }
        try:
            run = self._steps.step(
                "training",
                key,
                lambda: self._bench.train(
                    plan, seed=seed, max_seconds=max_seconds, label=purpose.replace(" ", "-"), target=self.target
                ),
                TrainingRun,
            )
        except TrialFailed as failure:
            self.failures[plan] = failure
            raise
        self._runs[plan, seed] = run
        return run

    def remember(self, plan: Plan, run: TrainingRun) -> None:
        """Notes a training that was measured elsewhere."""
        self._runs[plan, run.seed] = run

    def forget(self, plan: Plan) -> None:
        """So that verification trains again, from start to end."""
        self._runs = {key: run for key, run in self._runs.items() if key[0] != plan}

    def of(self, plan: Plan) -> tuple[TrainingRun, ...]:
        """All trainings of a plan, by seed."""
        return tuple(run for (known, _), run in sorted(self._runs.items(), key=lambda i: i[0][1]) if known == plan)
