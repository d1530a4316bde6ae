"""Whether two trainings differ by rounding alone: gradients at the same weights, and the optimizers' updates."""

from __future__ import annotations

from pathlib import Path

from autoopt.errors import TrialFailed
from autoopt.records import Objective, Plan, Quality
from autoopt.records.messages import Probe, samples_read
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.levels import ProbeResult, level_of
from autoopt.search.accept.probes import CANDIDATE, PROBE_TIMEOUT, Asks
from autoopt.search.trial_runner import PROBE
from autoopt.strategy import Risk


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
            limit, read = CANDIDATE * self._seconds, samples_read(before.probe.epochs)
            after = self._probe("candidate", before.probe.steps, limit, weights, read)
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

    def _probe(self, name: str, steps: int, seconds: float, weights: list[str], samples: int = 0) -> ProbeResult:
        out = self._folder / f"probe-{name}.npz"
        batches = str(self._folder / "batches.pt") if self._deterministic is False else ""
        found = self._runners[name].ask(
            self._plans[name], PROBE, timeout=PROBE_TIMEOUT, label=f"probe-{name}",
            out=str(out), steps=steps, seconds=seconds, weights=weights, batches=batches,
            reading=self._seconds, samples=samples,
        )  # fmt: skip
        return ProbeResult(Probe.model_validate(found), Arrays.read(out))
