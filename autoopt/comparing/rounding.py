"""Whether two trainings differ by rounding alone: gradients at the same weights, and the optimizers' updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Objective, Plan, Quality
from autoopt.records.messages import Probe
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.levels import Seen, level_of
from autoopt.strategy import Risk

PROBE = "autoopt.benchmark.tasks:probe"
_TIMEOUT = 600.0
_CANDIDATE = 5.0
"""The candidate may take this many times the seconds for as many steps: it may have to compile."""


class Asks(Protocol):
    """The part that is used of ``autoopt.search.trial_runner.TrialRunner``."""

    def ask(self, plan: Plan, task: str, *, timeout: float, label: str, **arguments: Any) -> JsonDict: ...


class Rounding:
    """Probes both sides at the baseline's weights.

    Args:
        runners: of baseline and candidate.
        plans: theirs.
        folder: for the probes' arrays.
        objective: how far a metric may lie off.
        deterministic: the dataset gives the same sample twice; where it does not, the baseline's batches are handed on.
        epsilon: rounding of the baseline's arithmetic.
        steps, seconds: of each probe at most; see ``autoopt.benchmark.probe``.
    """

    def __init__(
        self,
        runners: dict[str, Asks],
        plans: dict[str, Plan],
        folder: Path,
        objective: Objective,
        *,
        deterministic: bool | None,
        epsilon: float,
        steps: int,
        seconds: float,
    ) -> None:
        self._runners, self._plans, self._folder, self._objective = runners, plans, folder, objective
        self._deterministic, self._epsilon = deterministic, epsilon
        self._steps, self._seconds = steps, seconds

    def judged(self, weights: list[str]) -> Quality:
        """The quality that the probes of both sides tell, at these files of weights, start to end of a training."""
        try:
            before = self._probe("baseline", self._steps, self._seconds, weights)
            after = self._probe("candidate", before.probe.steps, _CANDIDATE * self._seconds, weights)
        except TrialFailed as failure:
            return Quality(method="not_tested", level="undecided", detail=f"the probe failed: {failure.reason}")
        # the class is of a strategy's change; what two sides differ by is not known, and gradients tell
        return level_of(
            Risk.NUMERIC,
            before,
            after,
            self._objective,
            deterministic=self._deterministic,
            epsilon=self._epsilon,
        )

    def _probe(self, name: str, steps: int, seconds: float, weights: list[str]) -> Seen:
        out = self._folder / f"probe-{name}.npz"
        batches = str(self._folder / "batches.pt") if self._deterministic is False else ""
        found = self._runners[name].ask(
            self._plans[name], PROBE, timeout=_TIMEOUT, label=f"probe-{name}",
            out=str(out), steps=steps, seconds=seconds, weights=weights, batches=batches,
        )  # fmt: skip
        return Seen(Probe.model_validate(found), Arrays.read(out))
