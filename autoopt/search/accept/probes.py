"""Probes of plans: durable, each plan once (``autoopt.benchmark.probe``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from autoopt.records import JsonDict, Plan
from autoopt.records.messages import Block, Probe, samples_read
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.levels import ProbeResult
from autoopt.search.accept.trainings import Steps
from autoopt.search.compare.comparison import LossPath
from autoopt.search.trial_runner import PROBE

LOSSES = "autoopt.benchmark.tasks:probe_losses"
STEPS = 64
SECONDS = 4.0
"""Steps of a probe, and the seconds that each of its parts may take."""

SLOW_STEP = 0.3
"""Seconds of a step from which on gradients of fewer batches are compared, and a script's batches not read on."""

PROBE_TIMEOUT = 600.0
CANDIDATE = 5.0
"""A candidate may take this many times the seconds for as many steps: it may have to compile."""


class Asks(Protocol):
    """The part that probes use of ``autoopt.search.trial_runner.TrialRunner``."""

    def ask(self, plan: Plan, task: str, *, timeout: float, label: str, **arguments: Any) -> JsonDict: ...


class Probes:
    """Probes plans, and remembers.

    Args:
        runner: starts trials.
        steps: makes a probe durable.
        directory: where arrays are written; made where it is missing.

    Attributes:
        weights: files of kept weights, start to end of a training of the baseline.
        random: samples are random, so that the first plan's batches are handed to the others.
        script: the workload is one, whose probe reads on by training.
        step_seconds: of the baseline's step; None before it was measured.
    """

    def __init__(self, runner: Asks, steps: Steps, directory: Path) -> None:
        self._runner, self._steps, self._directory = runner, steps, directory
        self.weights: tuple[str, ...] = ()
        self._own: tuple[str, ...] = ()
        self.random = self.script = False
        self.step_seconds: float | None = None
        self._seen: dict[tuple[str, int | None, int], ProbeResult] = {}

    @property
    def made(self) -> bool:
        """Whether there is any: the first is the incumbent's."""
        return bool(self._seen)

    def has(self, plan: Plan) -> bool:
        """Whether a plan was probed, at the weights that are kept now."""
        return any((key, count) == (plan.key, len(self.weights)) for key, _, count in self._seen)

    def pair(
        self, incumbent: Plan, candidate: Plan, *, at_any_weights: bool = False
    ) -> tuple[ProbeResult, ProbeResult]:
        """The probes of both, the candidate's over as many steps as the incumbent's.

        Args:
            at_any_weights: those that were made before the present weights were kept will do.

        Raises:
            TrialFailed: a probe ended badly.
        """
        if at_any_weights and (earlier := self.earlier(incumbent, candidate)):
            return earlier
        before = self._probe(incumbent, None)
        return before, self._probe(candidate, before.probe.steps, samples_read(before.probe.epochs))

    def earlier(self, incumbent: Plan, candidate: Plan) -> tuple[ProbeResult, ProbeResult] | None:
        """Probes of both at the same weights, the latest that there are; None where there are none."""
        found: dict[int, dict[str, ProbeResult]] = {}
        for (key, _, weights), seen in self._seen.items():
            found.setdefault(weights, {})[key] = seen
        both = [found[w] for w in sorted(found) if {incumbent.key, candidate.key} <= found[w].keys()]
        return (both[-1][incumbent.key], both[-1][candidate.key]) if both else None

    def rounded(self, plan: Plan, size: float, steps: int) -> LossPath:
        """Losses of a plan whose weights begin a rounding apart: as far as its training may part by chance.

        Args:
            size: of the rounding, over each weight.
            steps: so many optimizer steps, at most ``STEPS``.

        Raises:
            TrialFailed: the trial ended badly.
        """
        steps = min(steps, STEPS)
        key = {"plan": plan.model_dump(mode="json"), "rounded": size, "steps": steps}
        ask: dict[str, Any] = {"timeout": PROBE_TIMEOUT, "label": "rounded", "disturbed": size, "steps": steps}
        block = self._steps.step(
            "probe", key, lambda: Block.model_validate(self._runner.ask(plan, LOSSES, **ask)), Block
        )
        first = block.first_step
        return LossPath(steps=tuple(range(first, first + len(block.losses))), losses=block.losses)

    def _probe(self, plan: Plan, steps: int | None, samples: int = 0) -> ProbeResult:
        wanted = steps or 0
        known, count = self._seen.items(), len(self.weights)
        mine = [seen for (key, _, w), seen in known if (key, w) == (plan.key, count) and seen.probe.steps >= wanted]
        if mine:
            return mine[0]
        self._directory.mkdir(parents=True, exist_ok=True)
        key = {"plan": plan.model_dump(mode="json"), "steps": steps, "weights": len(self.weights)}
        probe = self._steps.step("probe", key, lambda: self._measure(plan, steps, samples), Probe)
        if not (self._directory / probe.file).exists():  # a run that was moved without its probes
            probe = self._measure(plan, steps, samples)
        self._own = self._own or probe.kept  # where there are no others, the next plans are asked at these
        seen = self._seen[plan.key, steps, count] = ProbeResult(probe, Arrays.read(self._directory / probe.file))
        return seen

    def _measure(self, plan: Plan, steps: int | None, samples: int) -> Probe:
        number = len(list(self._directory.glob("probe-*.npz")))
        # where there was no time to train and to keep weights, there is as little for gradients and evaluations
        hurried = not (self.weights or self.script)
        slow = hurried or (self.step_seconds or 0.0) > SLOW_STEP
        document = self._runner.ask(
            plan,
            PROBE,
            timeout=PROBE_TIMEOUT,
            label="probe",
            out=str(self._directory / f"probe-{number:03d}.npz"),
            steps=steps or STEPS,
            seconds=SECONDS if steps is None else CANDIDATE * SECONDS,
            weights=[path for path in self.weights or self._own if Path(path).exists()],
            batches=str(self._directory / "batches.pt") if self.random else "",
            reading=SECONDS,
            samples=samples,
            slow=slow,
            evaluates=not hurried,
        )
        return Probe.model_validate(document)
