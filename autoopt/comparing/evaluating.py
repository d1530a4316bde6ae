"""Both sides' weights by the baseline's own evaluation: in processes of the judge's, on data that are pinned.

A function's evaluation is called. A script evaluates in its own loop: the judge lets a process of the baseline train on
with the weights held until it has evaluated them (``autoopt.script.held``).
"""

from __future__ import annotations

import statistics
from contextlib import AbstractContextManager

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Plan
from autoopt.search.trial_runner import TrialRunner
from autoopt.trial.remote.launcher import AnyTrial

TAMPERED = "what the baseline's evaluation reads was changed while it was compared"

_TASKS = "autoopt.comparing.tasks"
_HELD = "autoopt.script.held:evaluate"
_TIMEOUT = 600.0
"""Seconds of one evaluation at the most."""


class Evaluating:
    """Evaluates weights of both sides.

    Args:
        runners, plans: of both sides; the baseline's are used.
        metric: its name, where it is known.
        seconds: that are waited for a script's evaluation.
        script: the baseline is one.
        evaluates: a function has an evaluation.
        wanted: somebody asks; else nothing is done.

    Attributes:
        metrics: of each side, by name; None where its weights do not fit the baseline's model.
        losses: of each side, on the same batches.
        pinned: digest of what the evaluation reads; None without one, or where it does not read the same twice.
        tampered: why the evaluation is not what it was before the candidate ran; empty where it is.
        note: why there is no metric; empty where there is one.
    """

    def __init__(
        self,
        runners: dict[str, TrialRunner],
        plans: dict[str, Plan],
        *,
        metric: str | None = None,
        seconds: float = 0.0,
        script: bool = False,
        evaluates: bool = True,
        wanted: bool = True,
    ) -> None:
        self._wanted = wanted
        self._runners, self._plans, self._seconds = runners, plans, seconds
        self._script, self._evaluates = script, evaluates
        self._pattern: str | None = None
        self.metric = metric
        self.metrics: dict[str, JsonDict | None] = {}
        self.losses: dict[str, list[float | None]] = {}
        self.pinned: str | None = None
        self.tampered = self.note = ""

    def _process(self, label: str) -> AbstractContextManager[AnyTrial]:
        return self._runners["baseline"].trial(self._plans["baseline"], label)

    def pin(self) -> None:
        """A function's evaluation, before the candidate runs; twice, since not every one reads the same again."""
        if self._script or not self._evaluates or not self._wanted:
            return
        digests: set[str | None] = set()
        for _ in range(2):
            with self._process("pin") as process:
                digests.add(process.call(f"{_TASKS}:pin", timeout=_TIMEOUT)["digest"])
        self.pinned = digests.pop() if len(digests) == 1 else None

    def baseline(self, weights: str) -> None:
        """A script's evaluation of its own weights, before the candidate runs."""
        if not self._script or not self._wanted:
            return
        found = self._held(weights, "baseline")
        self.metric = found.get("metric") or self.metric
        self._pattern, self.pinned = found.get("pattern"), found.get("digest")

    def candidate(self, judge: AnyTrial, baseline: str, candidate: str) -> None:
        """Both sides of a function, or a script's candidate, once all have trained.

        Args:
            judge: a fresh process of the baseline.
            baseline, candidate: files of weights.
        """
        if not self._wanted:
            return
        if self._script:
            self._of_script(baseline, candidate)
            return
        if self.pinned is not None and judge.call(f"{_TASKS}:pin", timeout=_TIMEOUT)["digest"] != self.pinned:
            self.tampered = TAMPERED
        weights = [baseline, candidate]
        answer = judge.call(f"{_TASKS}:evaluate", timeout=_TIMEOUT, weights=weights, losses=not self._evaluates)
        for name, found in zip(("baseline", "candidate"), answer["found"], strict=True):
            self.metrics[name] = found["metrics"] if found["fits"] else None
            self.losses[name] = found["losses"] if found["fits"] else []
        if not self._evaluates:
            self.note = "the workload has no evaluation"

    def _of_script(self, baseline: str, candidate: str) -> None:
        digest = self._held(candidate, "candidate").get("digest")
        if self.pinned is None or digest is None or digest == self.pinned:
            return
        again = self._held(baseline, "baseline").get("digest")
        if again == digest:  # for good, so it is not that each evaluation reads something else
            self.tampered = TAMPERED
        self.pinned = None

    def _held(self, weights: str, name: str) -> JsonDict:
        """One side's weights in a process of the baseline; what goes wrong there is noted and fails nobody."""
        arguments: JsonDict = {"weights": weights, "seconds": self._seconds, "pattern": self._pattern}
        try:
            with self._process(f"evaluate-{name}") as process:
                found = process.call(_HELD, timeout=3 * self._seconds + 60.0, **arguments)
        except TrialFailed as failure:
            found = {"fits": True, "value": None, "losses": [], "why": failure.reason}
        value = found.get("value")
        self.metrics[name] = {found["metric"]: value} if value is not None else {} if found["fits"] else None
        self.losses[name] = found.get("losses", [])
        self.note = self.note or found.get("why", "")
        return found

    def value(self, name: str) -> float | None:
        """The metric of one side's weights."""
        metrics = self.metrics.get(name)
        return metrics.get(self.metric) if metrics and self.metric else None

    def loss(self, name: str) -> float | None:
        """The mean loss at one side's weights, on batches that both were asked about."""
        losses = self.losses.get(name, [])[: self.loss_batches]
        known = [loss for loss in losses if loss is not None]
        return statistics.fmean(known) if known and len(known) == len(losses) else None

    @property
    def loss_batches(self) -> int:
        """How many that are."""
        return min((len(self.losses.get(name, [])) for name in ("baseline", "candidate")), default=0)
