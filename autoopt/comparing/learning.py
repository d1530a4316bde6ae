"""The weights of both sides: whether the candidate trains as the baseline does, and what either is worth.

Each side trains the same number of steps in a fresh process, from a seed that was drawn after both sides were fixed,
and hands over its weights; the candidate's own word is not asked. Processes of the judge's own, made from the baseline,
compare and evaluate them. Where weights differ by more than they would alone, both train once more with the same
random samples, and gradients at the baseline's weights and the optimizers' updates show whether it is rounding.

A function's evaluation is called. A script evaluates in its own loop: the judge lets a process of the baseline train on
with the weights held until it has evaluated them (``autoopt.script.tasks``). What either reads is pinned.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autoopt.benchmark.contents import added
from autoopt.comparing.watched import PATIENCE, STEPS
from autoopt.errors import TrialFailed
from autoopt.records import JsonDict, Objective, Plan
from autoopt.records.comparing import Learning
from autoopt.records.facts import WorkloadFacts
from autoopt.search.accept.gathering import PROBE_TIMEOUT, SECONDS, Probes
from autoopt.search.accept.losses import ROUNDING
from autoopt.search.accept.trainings import R
from autoopt.search.budget_allocation import TimeLimits
from autoopt.search.compare.arena import Clock
from autoopt.search.trial_runner import TrialRunner
from autoopt.strategy import Risk
from autoopt.trial.remote.launcher import AnyTrial

_TASKS = "autoopt.comparing.tasks"


@dataclass
class Trials:
    """The trials of both sides; runners and plans by ``baseline`` and ``candidate``.

    ``folder``: for weights and arrays. ``deadline``: on ``clock``; who does not answer until then has hung, but for
    :data:`PATIENCE` seconds. ``script``: both sides are scripts.
    """

    runners: dict[str, TrialRunner]
    plans: dict[str, Plan]
    folder: Path
    clock: Clock
    deadline: float
    script: bool = False

    def begin(self, name: str, label: str) -> AbstractContextManager[AnyTrial]:
        return self.runners[name].trial(self.plans[name], label)

    @property
    def patience(self) -> float:
        """Seconds that an answer is waited for."""
        return max(self.deadline - self.clock(), PATIENCE)

    def patient(self, name: str) -> TrialRunner:
        """The runner of one side, whose processes have until then to start."""
        runner = self.runners[name]
        runner.limits = TimeLimits(start=self.patience, ready=self.patience)
        return runner


class Evaluating:
    """Evaluates weights of both sides in processes of the baseline.

    Args:
        seconds: that are waited for a script's evaluation.
        wanted: somebody asks; else nothing is done.

    Attributes:
        values: the metric of each side's weights; None where they do not fit the baseline's model.
        losses: of each side, on the same batches.
        pinned: digest of what the evaluation reads; None without one, or where it does not read the same again.
        tampered: why the evaluation is not what it was before the candidate ran; empty where it is.
        note: why there is no metric; empty where there is one.
    """

    def __init__(self, trials: Trials, facts: WorkloadFacts, seconds: float, wanted: bool = True) -> None:
        self._trials, self._seconds = trials, seconds
        self._evaluates, self._wanted = facts.has_evaluate, wanted
        self._pattern: str | None = None
        self.metric = facts.metric
        self.values: dict[str, float | None] = {}
        self.losses: dict[str, list[float | None]] = {}
        self.pinned: str | None = None
        self.tampered = self.note = ""

    def baseline(self, weights: str) -> None:
        """The evaluation of a file of the baseline's weights, before the candidate runs."""
        if self._wanted:
            found = self._held(weights, "baseline")
            self._pattern, self.pinned = found.get("pattern"), found.get("digest")

    def candidate(self, baseline: str, candidate: str) -> None:
        """That of the candidate's, once both have trained; of the baseline's again where it reads something else."""
        if not self._wanted:
            return
        digest = self._held(candidate, "candidate").get("digest")
        if self.pinned is None or digest is None or digest == self.pinned:
            return
        again = self._held(baseline, "baseline").get("digest")
        if again == digest:  # for good, so it is not that each evaluation reads something else
            self.tampered = "what the baseline's evaluation reads was changed while it was compared"
        self.pinned = None

    def _held(self, weights: str, name: str) -> JsonDict:
        """One side's weights in a process of the baseline; what goes wrong there is noted and fails nobody."""
        task, timeout = f"{_TASKS}:evaluate", PROBE_TIMEOUT
        arguments: JsonDict = {"metric": self.metric or "", "losses": not self._evaluates}
        if self._trials.script:
            task, timeout = "autoopt.script.tasks:evaluate", 3 * self._seconds + PATIENCE
            arguments = {"seconds": self._seconds, "pattern": self._pattern}
        try:
            with self._trials.begin("baseline", f"evaluate-{name}") as process:
                found = process.call(task, timeout=timeout, weights=weights, **arguments)
        except TrialFailed as failure:
            found = {"why": failure.reason}
        if name == "baseline":
            self.metric = found.get("metric") or self.metric
        self.values[name] = found.get("value") if found.get("metric") == self.metric else None
        self.losses[name] = found.get("losses", [])
        self.note = self.note or found.get("why", "")
        return found

    def loss(self, name: str) -> float | None:
        """The mean loss at one side's weights, on batches that both were asked about."""
        losses = self.losses.get(name, [])[: self.loss_batches]
        known = [loss for loss in losses if loss is not None]
        return statistics.fmean(known) if known and len(known) == len(losses) else None

    @property
    def loss_batches(self) -> int:
        return min((len(self.losses.get(name, [])) for name in ("baseline", "candidate")), default=0)


LEAST_STEPS, MOST_STEPS = 5, 64
"""Of each of the two stretches: in more, rounding alone may part two trainings."""

IDENTICAL = 1e-5
"""Weights that lie no further apart, over the way that training moved them, came by the same steps: what is left is the
order of additions in float32. Coarser rounding is no less a training, but another level."""

SAME = 1e-3
"""How far a baseline may lie from itself, where its device does not repeat itself, and a start from another."""

DRIFTED = 0.3
"""Weights further apart than this are not called those of one training, whatever the gradients are."""

_PARTS = 18
"""Parts of the time for trainings, of which each part of a probe may take one."""


@dataclass
class Trained:
    """A side's trainings. ``weights``: of each at its end.

    Of the first training ``first``, ``middle``: weights before it and in its middle; ``samples``: that it counted.
    ``step_seconds``: of the latest one's steps.
    """

    weights: list[Path] = field(default_factory=list)
    samples: int | None = None
    first: Path | None = None
    middle: Path | None = None
    step_seconds: float | None = None


class Judge:
    """Trains both sides and compares what came out.

    Args:
        seconds: for all trainings, about.
        objective: how far a metric may lie off; None leaves what is not identical undecided.
        epsilon: rounding of the baseline's arithmetic.
        again: how far the baseline is known to lie from itself; None: it trains twice for it.
    """

    def __init__(
        self,
        trials: Trials,
        seconds: float,
        facts: WorkloadFacts,
        *,
        objective: Objective | None = None,
        epsilon: float = ROUNDING[None],
        evaluates: bool = True,
        again: float | None = None,
    ) -> None:
        self.trials, self._seconds, self.again = trials, seconds, again
        self._facts, self._objective, self._epsilon = facts, objective, epsilon
        self.evaluating = Evaluating(trials, facts, seconds / 3, wanted=evaluates)
        planned = facts.max_steps
        self._most = max(min(MOST_STEPS, planned // 2 - 1), 1) if planned else MOST_STEPS
        self.steps = min(LEAST_STEPS, self._most)
        self.trained = {"baseline": Trained(), "candidate": Trained()}

    def fix_baseline(self) -> None:
        """Pins the baseline before any line of the candidate has run: its evaluation, and its first training.

        Raises:
            TrialFailed: it failed; ``where`` names it.
        """
        self._train("baseline")
        self.evaluating.baseline(str(self.trained["baseline"].weights[0]))

    def learning(self) -> Learning:
        """The level of quality.

        Raises:
            TrialFailed: a side failed, or showed a loss that is not finite; ``where`` names the side.
        """
        if not self.trained["baseline"].weights:
            self.fix_baseline()
        for name in ("candidate", *(("baseline",) if self.again is None else ())):
            self._train(name)
        one, two = self.trained["baseline"], self.trained["candidate"]
        learning = self._apart()
        self.again = learning.again
        self.evaluating.candidate(str(one.weights[0]), str(two.weights[0]))
        learning = learning.model_copy(update={"evaluation": self.evaluating.pinned, **self._level(learning)})
        drawn = learning.level == "undecided" and (learning.start_apart or 0.0) <= SAME < (learning.apart or 0.0)
        if not drawn or (learning.again or 0.0) > SAME:
            return learning
        # the level where both sides draw the same random samples; they go on so where it is shown by that
        for runner in self.trials.runners.values():
            runner.draw_alike(True)
        for name in ("baseline", "candidate"):
            self._train(name)
        found = self._apart().model_copy(update={"evaluation": learning.evaluation})
        found = found.model_copy(update=self._level(found))
        if found.level == "undecided":
            for runner in self.trials.runners.values():
                runner.draw_alike(False)
            return learning
        detail = f"{found.detail}; what is drawn at random for a sample is another draw, and was made the same for this"
        return found.model_copy(update={"level": "equivalent", "detail": detail})

    def losses(self) -> tuple[float | None, float | None]:
        """The loss of both sides' weights on the same batches, after one training of each.

        Raises:
            TrialFailed: a side failed; ``where`` names it.
        """
        self.fix_baseline()
        self._train("candidate")
        one, two = (str(self.trained[name].weights[0]) for name in ("baseline", "candidate"))
        self.evaluating.candidate(one, two)
        return self.evaluating.loss("baseline"), self.evaluating.loss("candidate")

    def _apart(self) -> Learning:
        """How far both sides' latest weights, and those at the start, lie apart, by the judge's own process."""
        one, two = self.trained["baseline"], self.trained["candidate"]
        end = str(one.weights[-1])
        pairs = [[end, str(two.weights[-1])], [str(one.first), str(two.first)], [end, str(one.weights[0])]]
        arguments: JsonDict = {"first": str(one.first), "last": end, "pairs": pairs}
        with self.trials.begin("baseline", "judge") as judge:
            found, start, again = judge.call(f"{_TASKS}:apart", timeout=PROBE_TIMEOUT, **arguments)["apart"]
        again = again if self.again is None else self.again
        return Learning(steps=2 * self.steps, apart=found, again=again, start_apart=start)

    def _level(self, learning: Learning) -> JsonDict:
        """The level that distances of weights show, and gradients where these leave it open, with its reason."""
        steps, again, apart = learning.steps, learning.again, learning.apart
        if again is None or apart is None:
            return {"detail": "its weights do not fit the baseline's model: only trainings to the target could tell"}
        if again > SAME:
            return {"detail": f"the baseline does not repeat itself: {again:.2g} of its way apart after {steps} steps"}
        if apart <= max(IDENTICAL, 2 * again):
            close = "bit for bit" if apart == 0 else f"{apart:.1g} of the way that training moved them apart"
            detail = f"same weights after {steps} steps from a seed drawn for this comparison ({close})"
            return {"level": "identical", "detail": detail}
        detail = f"other weights after {steps} steps: {apart:.2g} times as far apart as training moved them"
        start = learning.start_apart
        if start is None or start > SAME:
            return {"detail": f"{detail}; they differ before the first of these steps"}
        if apart > DRIFTED or self._objective is None:
            return {"detail": detail}
        one, part, runners = self.trained["baseline"], min(SECONDS, self._seconds / _PARTS), self.trials.runners
        probes, other = (Probes(runners[name], self, self.trials.folder, part) for name in ("baseline", "candidate"))
        probes.step_seconds = other.step_seconds = one.step_seconds
        probes.weights = tuple(str(path) for path in (one.first, one.middle, one.weights[0]))
        quality = probes.quality(  # the class is of a strategy's change; what two sides differ by is not known
            Risk.NUMERIC, self.trials.plans["baseline"], self.trials.plans["candidate"], self._facts, self._objective,
            epsilon=self._epsilon, other_side=other,
        )  # fmt: skip
        return {
            "level": "equivalent" if quality.passed else "undecided",
            "detail": f"{detail}; {quality.detail}",
            "gradient_error": quality.gradient_error,
            "gradient_bias": quality.gradient_bias,
        }

    def step(self, kind: str, key: JsonDict, measure: Callable[[], R], model: type[R]) -> R:
        """A probe: nothing is remembered from one comparison to the next."""
        return measure()

    def _train(self, name: str) -> None:
        trained, folder, clock = self.trained[name], self.trials.folder, self.trials.clock
        number = len(trained.weights)
        out = folder / f"{name}-{number}.pt"
        losses: list[float | None] = []
        samples: int | None = 0
        with _blaming(name), self.trials.begin(name, f"train-{name}") as process:

            def step(steps: int) -> None:
                nonlocal samples
                found = process.call(STEPS, timeout=self.trials.patience, steps=steps)
                losses.extend(found["losses"])
                samples = added(samples, found.get("samples"))

            def keep(path: Path) -> Path:
                process.call(f"{_TASKS}:keep", timeout=PROBE_TIMEOUT, out=str(path))
                return path

            ahead = 0
            if not number:
                trained.first = keep(folder / f"{name}-first.pt")
            if not number and name == "baseline":
                ahead = min(4, self.steps)
                began = clock()
                step(ahead)
                each = (clock() - began) / ahead
                self.steps = int(min(max(self._seconds / 16 / each, self.steps), self._most))
            if self.steps > ahead:
                step(self.steps - ahead)
            if not number:
                trained.middle = keep(folder / f"{name}-middle.pt")
            began = clock()
            step(self.steps)
            trained.step_seconds = (clock() - began) / self.steps  # they are warm by now
            keep(out)
            if not losses:
                raise TrialFailed("error", "no loss was captured")
            if any(loss is None for loss in losses):
                raise TrialFailed("not_finite", "a loss is not finite")
        if not number:
            trained.samples = samples
        trained.weights.append(out)

    @property
    def samples_per_step(self) -> float | None:
        """Of the baseline, by its own count; None where its samples cannot be counted."""
        samples = self.trained["baseline"].samples
        return samples / (2 * self.steps) if samples else None


@contextmanager
def _blaming(name: str) -> Iterator[None]:
    try:
        yield
    except TrialFailed as failure:
        raise TrialFailed(failure.kind, failure.message, detail=failure.detail, where=name) from None
