"""Probes of plans: durable, each plan once (``autoopt.benchmark.probe``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Plan
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Block, Probe, samples_read
from autoopt.search.accept.data import ProbeResult
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.losses import ROUNDING
from autoopt.search.accept.trainings import Steps
from autoopt.search.compare.comparison import LossPath
from autoopt.search.trial_runner import PROBE

LOSSES = "autoopt.benchmark.tasks:probe_losses"
STEPS = 64
SECONDS = 4.0
"""Steps of a probe, and the seconds that each of its parts may take."""

SLOW_STEP = 0.3
"""Seconds of a step from which on a script's batches are not read on, for that trains."""

FEWEST_GRADIENTS, GRADIENTS, MOST_GRADIENTS = 4, 32, 256
"""Batches that gradients are compared of at each set of weights: of a step of whatever length; where those at all
sets take no longer than ``SECONDS``; and where only more of them would tell a bias."""

MORE_SECONDS = 5 * SECONDS
"""For the gradients at all sets of weights, where more batches are wanted to tell a bias."""

_POINTS = 3
"""Sets of weights: of the start, the middle and the end of a training."""

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
        step_seconds: of the baseline's step; None before it was measured.
    """

    def __init__(self, runner: Asks, steps: Steps, directory: Path) -> None:
        self._runner, self._steps, self._directory = runner, steps, directory
        self.weights: tuple[str, ...] = ()
        self._own: tuple[str, ...] = ()
        self.step_seconds: float | None = None
        self._seen: dict[tuple[str, int, int], ProbeResult] = {}

    @property
    def made(self) -> bool:
        """Whether there is any: the first is the incumbent's."""
        return bool(self._seen)

    def has(self, plan: Plan) -> bool:
        """Whether a plan was probed, at the weights that are kept now."""
        return any((key, count) == (plan.key, len(self.weights)) for key, count, _ in self._seen)

    def pair(
        self,
        incumbent: Plan,
        candidate: Plan,
        facts: WorkloadFacts,
        *,
        until: int = 0,
        gradients: int = 0,
        at_any_weights: bool = False,
    ) -> tuple[ProbeResult, ProbeResult]:
        """The probes of both, the candidate's over as many steps as the incumbent's.

        Args:
            facts: whether samples are random, and whether the workload is a script.
            until: steps of the shortest training that quality asks for.
            gradients: batches at each set of weights; 0: as many as usual.
            at_any_weights: those that were made before the present weights were kept will do.

        Raises:
            TrialFailed: a probe ended badly.
        """
        if at_any_weights and (earlier := self.earlier(incumbent, candidate)):
            return earlier
        ask = _Ask(facts, until, gradients or self._usual(facts, until), self.weights)
        before = self._probe(incumbent, ask, None)
        return before, self._probe(candidate, ask, before)

    def affordable(self, facts: WorkloadFacts) -> int:
        """Batches at each set of weights that the time for a bias allows."""
        step = self.step_seconds
        if step is None or not (self.weights or facts.adapter == "script"):
            return 0
        return int(min(MOST_GRADIENTS, MORE_SECONDS / _POINTS / step))

    def _usual(self, facts: WorkloadFacts, until: int) -> int:
        step = self.step_seconds
        most = GRADIENTS // 2 if step is None else min(GRADIENTS, SECONDS / _POINTS / step)
        if facts.adapter == "script" and until:  # its own steps are used up, and it ends where there are no more
            most = min(most, until / 2 / _POINTS)
        return max(FEWEST_GRADIENTS, int(most))

    def earlier(self, incumbent: Plan, candidate: Plan) -> tuple[ProbeResult, ProbeResult] | None:
        """Probes of both at the same weights, the latest that there are; None where there are none."""
        found: dict[int, dict[str, ProbeResult]] = {}
        for (key, weights, _), seen in self._seen.items():
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
        key = {"plan": plan.model_dump(), "rounded": size, "steps": steps}
        ask: dict[str, Any] = {"timeout": PROBE_TIMEOUT, "label": "rounded", "disturbed": size, "steps": steps}
        block = self._steps.step(
            "probe", key, lambda: Block.model_validate(self._runner.ask(plan, LOSSES, **ask)), Block
        )
        first = block.first_step
        return LossPath(steps=tuple(range(first, first + len(block.losses))), losses=block.losses)

    def _probe(self, plan: Plan, ask: _Ask, before: ProbeResult | None) -> ProbeResult:
        steps, samples = (before.probe.steps, samples_read(before.probe.epochs)) if before else (None, 0)
        place = (plan.key, len(self.weights), ask.gradients)
        mine = self._seen.get(place)
        if mine is not None and mine.probe.steps >= (steps or 0):
            return mine
        self._directory.mkdir(parents=True, exist_ok=True)
        key = {"plan": plan.model_dump(), "steps": steps, "weights": len(self.weights)}
        key["gradients"] = ask.gradients
        if before:  # only as far as the other got: what comes after that has nothing to be compared with
            ask = replace(ask, until=before.probe.until if before.probe.trained >= before.probe.until else 0)
        probe = self._steps.step("probe", key, lambda: self._measure(plan, ask, steps, samples), Probe)
        if not (self._directory / probe.file).exists():  # a run that was moved without its probes
            probe = self._measure(plan, ask, steps, samples)
        self._own = self._own or probe.kept  # where there are no others, the next plans are asked at these

        def again(**other: Any) -> Probe | None:
            asked, read = replace(ask, until=probe.until, **other), samples_read(probe.epochs)
            known = {**key, "steps": probe.steps, **other}
            try:
                return self._steps.step("probe", known, lambda: self._measure(plan, asked, probe.steps, read), Probe)
            except TrialFailed:  # a training that ends at such weights
                return None

        @cache
        def elsewhere() -> Probe | None:
            return again(elsewhere=True)

        @cache
        def rounded() -> Arrays | None:
            found = again(disturbed=ROUNDING[None])
            file = None if found is None else self._directory / found.file
            return Arrays.read(file) if file is not None and file.exists() else None

        arrays = Arrays.read(self._directory / probe.file)
        seen = self._seen[place] = ProbeResult(probe, arrays, elsewhere, rounded)
        return seen

    def _measure(self, plan: Plan, ask: _Ask, steps: int | None, samples: int) -> Probe:
        number = len(list(self._directory.glob("probe-*.npz")))
        script = ask.facts.adapter == "script"
        slow = script and (self.step_seconds or 0.0) > SLOW_STEP
        document = self._runner.ask(
            plan,
            PROBE,
            timeout=PROBE_TIMEOUT,
            label="probe",
            out=str(self._directory / f"probe-{number:03d}.npz"),
            steps=steps or STEPS,
            seconds=SECONDS if steps is None else CANDIDATE * SECONDS,
            weights=[path for path in ask.weights or self._own if Path(path).exists()],
            batches=str(self._directory / "batches.pt") if ask.facts.dataset.deterministic is False else "",
            reading=0.0 if slow else SECONDS,
            samples=0 if slow else samples,
            gradients=ask.gradients,
            until=ask.until,
            # where there was no time to train and to keep weights, there is as little for evaluations
            evaluates=bool(ask.weights or script),
            **({"elsewhere": True} if ask.elsewhere else {}),
            **({"disturbed": ask.disturbed} if ask.disturbed else {}),
        )
        return Probe.model_validate(document)


@dataclass(frozen=True)
class _Ask:
    """What both probes of a pair have in common: see :meth:`Probes.pair`.

    ``weights``: files of kept weights. ``elsewhere``: the incumbent's from weights far away from them. ``disturbed``:
    so far away, over each weight, they begin.
    """

    facts: WorkloadFacts
    until: int
    gradients: int
    weights: tuple[str, ...]
    elsewhere: bool = False
    disturbed: float = 0.0
