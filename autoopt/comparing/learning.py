"""Whether the candidate trains as the baseline does, judged by weights: the candidate's own word is not asked.

Each side trains the same number of steps in fresh processes, from a seed that was drawn after both sides were fixed,
and hands over its weights. The judge's own process, built from the baseline, compares and evaluates them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Plan
from autoopt.records.comparing import Learning
from autoopt.search.trial_runner import TrialRunner

LEAST_STEPS, MOST_STEPS = 5, 64
"""Of each of the two stretches: in more, rounding alone may part two trainings."""

SAME = 1e-3
"""Weights that lie no further apart, over the way that training moved them, came by the same steps."""

_TASKS = "autoopt.comparing.tasks"


@dataclass
class Trained:
    """A side's trainings. ``seconds``: of the second stretch, on the judge's clock; ``weights``: after it."""

    weights: list[Path] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)


class Judge:
    """Trains both sides and compares what came out.

    Args:
        runners: of baseline and candidate.
        plans: theirs.
        folder: for weights.
        clock: seconds.
        seconds: for all trainings, about.
    """

    def __init__(
        self,
        runners: dict[str, TrialRunner],
        plans: dict[str, Plan],
        folder: Path,
        clock: Callable[[], float],
        seconds: float,
    ) -> None:
        self._runners, self._plans, self._folder, self._clock = runners, plans, folder, clock
        self._seconds = seconds
        self.steps = LEAST_STEPS
        self.trained = {"baseline": Trained(), "candidate": Trained()}
        self.metrics: dict[str, JsonDict | None] = {}

    def learning(self) -> Learning:
        """The level of quality.

        Raises:
            TrialFailed: a side failed, or showed a loss that is not finite; ``where`` names the side.
        """
        for name in ("baseline", "candidate", "candidate", "baseline"):
            try:
                self._train(name)
            except TrialFailed as failure:
                raise TrialFailed(failure.kind, failure.message, detail=failure.detail, where=name) from None
        one, two = self.trained["baseline"], self.trained["candidate"]
        with self._runners["baseline"].trial(self._plans["baseline"], "judge") as judge:
            names: JsonDict = {"first": str(self._first), "one": str(one.weights[0])}
            again = judge.call(f"{_TASKS}:apart", timeout=300.0, other=str(one.weights[1]), **names)["apart"]
            found = [
                judge.call(f"{_TASKS}:apart", timeout=300.0, other=str(path), **names)["apart"] for path in two.weights
            ]
            for name, trained in self.trained.items():
                answer = judge.call(f"{_TASKS}:evaluate", timeout=600.0, weights=str(trained.weights[0]))
                self.metrics[name] = answer["metrics"]
        return self._level(again, found)

    def _level(self, again: float | None, found: list[float | None]) -> Learning:
        steps = 2 * self.steps
        if again is None or any(each is None for each in found):
            detail = "its weights do not fit the baseline's model: only trainings to the target could tell"
            return Learning(detail=detail, steps=steps, again=again)
        apart = max(each for each in found if each is not None)
        if again > SAME:
            detail = f"the baseline does not repeat itself: {again:.2g} of its way apart after {steps} steps"
            return Learning(detail=detail, steps=steps, apart=apart, again=again)
        if apart <= SAME:
            detail = f"same weights after {steps} steps from a seed drawn for this comparison ({apart:.1g} of the way)"
            return Learning(level="identical", detail=detail, steps=steps, apart=apart, again=again)
        detail = f"other weights after {steps} steps: {apart:.2g} of the way that training moved them"
        return Learning(detail=detail, steps=steps, apart=apart, again=again)

    @property
    def _first(self) -> Path:
        return self._folder / "first.pt"

    def _train(self, name: str) -> None:
        trained, runner = self.trained[name], self._runners[name]
        out = self._folder / f"{name}-{len(trained.weights)}.pt"
        with runner.trial(self._plans[name], f"train-{name}") as process:
            keep = f"{_TASKS}:train_and_keep"
            if not self._first.exists():
                process.call(keep, timeout=300.0, steps=0, out=str(self._first))
                began = self._clock()
                process.call(keep, timeout=600.0, steps=4, out=str(out))
                step = (self._clock() - began) / 4
                self.steps = int(min(max(self._seconds / 16 / step, LEAST_STEPS), MOST_STEPS))
                ahead = 4
            else:
                ahead = 0
            timeout = 120.0 + 20 * self._seconds
            losses = process.call(keep, timeout=timeout, steps=self.steps - ahead, out=str(out))["losses"]
            began = self._clock()
            losses += process.call(keep, timeout=timeout, steps=self.steps, out=str(out))["losses"]
            trained.seconds.append(self._clock() - began)
        if not losses:
            raise TrialFailed("error", "no loss was captured")
        if any(loss is None for loss in losses):
            raise TrialFailed("not_finite", "a loss is not finite")
        trained.weights.append(out)

    def ratio(self) -> float | None:
        """The most that these trainings let the candidate be faster, step for step; None where they are too short.

        The baseline's slowest over the candidate's quickest: other programs disturb trainings that alternate.
        """
        one, two = self.trained["baseline"].seconds, self.trained["candidate"].seconds
        if not one or not two or min(*one, *two) < _SHORTEST:
            return None
        return max(one) / min(two)


_SHORTEST = 0.1
"""Seconds of training below which starting and writing weights would be what is compared."""
