"""The loop over a fake machine: trials are fakes whose true speed and size are known, everything else is real."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from autoopt.errors import TrialFailed
from autoopt.events import Announcer, Event
from autoopt.loop import Loop
from autoopt.options import Options
from autoopt.records import Change, Curve, CurvePoint, Environment, JsonDict, Plan, Verdict
from autoopt.records.facts import WorkloadFacts
from autoopt.records.messages import Probe, TrainingRun
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry, Source
from autoopt.search.accept.evidence import TrainedPair
from autoopt.search.accept.gathering import Gate, Probes
from autoopt.search.accept.trainings import Trainings
from autoopt.search.budget_allocation import BudgetAllocation, TimeLimits
from autoopt.search.outcome import Outcome
from autoopt.search.planner import Choice
from autoopt.search.run_context import RunContext
from autoopt.search.trial_runner import MemoryLedger, no_further
from autoopt.setup import Setup
from autoopt.storage.run import Run
from autoopt.storage.run_directory import RunDirectory
from autoopt.strategy import Case, Risk, Strategy
from autoopt.testing.fakes import Behaviour, FakeClock, FakeMachine, NoiseModel, fake_facts

STEPS = 1000
TARGET = 0.9
RAM = 1 << 36
"""Bytes; a trial of a plain behaviour takes a 256th of it."""


@dataclass(frozen=True)
class Named:
    """A change of the loss in name alone, which a process can take on."""

    name: str

    def __call__(self, loss: Any) -> Any:
        return loss


def strategy(
    name: str, *, risk: Risk = Risk.EXACT, settings: tuple[JsonDict, ...] = ({},), **attributes: Any
) -> Strategy:
    """A strategy that sets a flag by its own name; one that is switchable changes the loss by it."""

    class Made(Strategy):
        def settings(self, case: Case) -> Any:
            return list(settings)

        def apply(self, setup: Setup, setting: JsonDict) -> Setup:
            if self.switchable:
                return setup.with_loss(Named(f"{name} {setting}"))
            return setup.with_flags(**{name: setting or True})

    for key, value in {"name": name, "risk": risk, **attributes}.items():
        setattr(Made, key, value)
    Made.__name__ = name
    return Made()


def fake_probe(behaviour: Behaviour, *, out: str, steps: int, **_: Any) -> JsonDict:
    """A probe of a plan whose true quality is known (``Behaviour.quality``), with its arrays in the file."""
    rng = np.random.default_rng(7)
    gradients, weights = 1.0 + rng.normal(size=(32, 40)), np.cumsum(0.01 * rng.normal(size=(steps + 1, 40)), axis=0)
    error = {"identical": 0.0, "equivalent": 0.05, "noisy": 0.4, "undecided": 0.05, "another": 2.0}[behaviour.quality]
    bias = 0.4 if behaviour.quality == "undecided" else 0.0
    changed = gradients + error * np.random.default_rng(8).normal(size=gradients.shape)
    changed += bias * (-1.0) ** np.arange(40)
    weights = weights + (1e-2 * error * np.sqrt(np.arange(steps + 1)))[:, None]
    points = {f"gradients{number}": changed for number in range(3)}
    shape: dict[str, Any] = {"names": np.array(["w"]), "sizes": [40], "counts": [40]}
    np.savez(out, weights=weights, updates=gradients, draws=gradients, **shape, **points)
    digests = tuple(str(step) for step in range(steps))
    losses = tuple(behaviour.loss(step) for step in range(steps))
    seen: dict[str, Any] = {"file": Path(out).name, "digests": digests, "orders": digests, "losses": losses}
    return Probe(**seen, steps=steps, waiting=0.0, computing=behaviour.step_seconds).model_dump()


class FakeTrial:
    """A trial's process, as ``inspect`` and ``examine`` use it."""

    def __init__(self, runner: FakeRunner, plan: Plan) -> None:
        self._runner, self._plan = runner, plan

    def call(self, task: str, **arguments: Any) -> JsonDict:
        name = task.rpartition(":")[2]
        behaviour = self._runner.machine.behave(self._plan)
        if name == "facts":
            return self._runner.facts.model_dump()
        if name == "environment":
            memory = {"ram_bytes": RAM, "device_memory_bytes": self._runner.machine.memory_limit_bytes or RAM}
            machine = Environment(python="3", device="cpu", cores=2, threads=2, **memory)
            return machine.model_dump()
        if name in ("ready", "probe_losses", "largest_batch"):
            return self._alone(name)
        if name in ("warm_up", "running"):
            arm = self._runner.machine.start(self._plan, "examine")
            if name == "warm_up":  # one process does both
                arm.ready()
            document = (
                arm.warm_up(1.0) if name == "warm_up" else arm.block(arguments["seconds"], arguments["min_steps"], 0.0)
            )
            arm.close()
            told = document.model_dump()
            return told if name == "warm_up" else {"block": told, "reference": None}
        if name == "measure_stages" and self._runner.survey:
            return self._runner.survey(behaviour)
        if name == "measure_peaks" and self._runner.peaks:
            return self._runner.peaks
        if name == "probe":
            self._runner.probed.append(self._plan)
            self._runner.machine.clock.advance(self._runner.probe_seconds)
            return {**fake_probe(behaviour, **arguments), "seconds": self._runner.probe_seconds}
        if name == "inspect":
            return {key: {} for key in arguments["strategies"]}
        if name == "flops":
            return {"flops_per_step": 1e6 * behaviour.samples_per_step}
        raise TrialFailed("error", f"no {name} here")

    def _alone(self, name: str) -> JsonDict:
        """The answers of a trial that is looked at for its memory."""
        machine = self._runner.machine
        arm = machine.start(self._plan, name)
        try:
            found = arm.ready()
            if name == "ready":
                return found.model_dump()
            if name == "probe_losses":
                return arm.block(0.0, 3, 0.0).model_dump()
            largest = self._runner.largest_of(self._plan)
            return {"peak_memory_bytes": largest, "limit_bytes": machine.memory_limit_bytes, "allocation_retries": 0}
        finally:
            arm.close()


class FakeRunner:
    """The trial runner over a fake machine."""

    latest_log = None
    parallel = 1
    base = TrialSpec(workload="fake:build")
    limits = TimeLimits()
    largest = 1.0
    """Memory of the largest batch, in times of that of an ordinary one."""
    survey: Callable[[Behaviour], JsonDict] | None = None
    """Timings of a plan's stages alone; None: stages cannot be measured."""
    peaks: JsonDict | None = None
    probe_seconds = 0.0
    """Of a probe, beyond those of the tasks that a world may charge."""
    obeys_limits = False
    """Trainings end with their seconds, as those of a real one do; False: they go on to their target."""

    def __init__(self, machine: FakeMachine, registry: Registry, reach: Callable[[Plan], int | None]) -> None:
        self.machine, self.registry, self.reach = machine, registry, reach
        self.facts: WorkloadFacts = fake_facts(Behaviour()).model_copy(
            update={"metric": "accuracy", "mode": "max", "target": TARGET, "max_steps": STEPS}
        )
        self.trained: list[tuple[Plan, int]] = []
        self.probed: list[Plan] = []
        self.once: dict[str, float] = {}
        self.start = machine.start
        self.memory = MemoryLedger()

    def not_in_lines(self, change: Change) -> str:
        """No script: nothing is said by its lines."""
        return ""

    def watched(self) -> None:
        """There is no script here."""

    def in_source(self, plan: Plan) -> bool:
        """No script: a plan is its setup."""
        return True

    def held(self) -> AbstractContextManager[None]:
        """There is one machine."""
        return nullcontext()

    @contextmanager
    def trial(self, plan: Plan, label: str, seed: int | None = None) -> Iterator[FakeTrial]:
        yield FakeTrial(self, plan)

    def ask(self, plan: Plan, task: str, **arguments: Any) -> JsonDict:
        behaviour = self.machine.behave(plan)
        if behaviour.fails and not behaviour.fails_at:  # it is not even built
            raise behaviour.fails
        return FakeTrial(self, plan).call(task, **arguments)

    def train_interleaved(self, baseline: Plan, plan: Plan, **arguments: Any) -> TrainedPair:
        """Both trained; in simulated time turns change nothing."""
        one = self.train(baseline, **arguments)
        if not one.reached and self.obeys_limits:
            arguments["max_steps"] = no_further(one)
        return TrainedPair(baseline=one, best=self.train(plan, **arguments))

    def largest_of(self, plan: Plan) -> int:
        """Bytes that a training on the largest batch takes.

        Raises:
            TrialFailed: that is more than there are.
        """
        largest, limit = int(self.largest * self.machine.behave(plan).memory_bytes), self.machine.memory_limit_bytes
        if limit is not None and largest > limit:
            raise TrialFailed("out_of_memory", f"{largest} bytes wanted on the largest batch, {limit} there are")
        return largest

    def train(
        self,
        plan: Plan,
        *,
        seed: int,
        max_seconds: float,
        target: float | None,
        max_steps: int | None = None,
        **_: Any,
    ) -> TrainingRun:
        """Every 100 steps an evaluation; the metric rises in a straight line to the target at ``reach(plan)`` steps."""
        self.trained.append((plan, seed))
        self.largest_of(plan)
        behaviour, steps = self.machine.behave(plan), self.reach(plan)
        if behaviour.fails:
            raise behaviour.fails
        end = math.ceil((steps or STEPS) / 100) * 100
        if self.obeys_limits:
            there = (target or TARGET) / TARGET * (steps or 5 * STEPS)
            end = min(end, math.ceil(there / 100) * 100, max(int(max_seconds / behaviour.step_seconds), 1))
        end = end if max_steps is None else min(end, max_steps)
        every = min(100, end)
        points = tuple(
            CurvePoint(step=s, seconds=s * behaviour.step_seconds, metric=TARGET * s / (steps or 5 * STEPS))
            for s in range(every, end + 1, every)
        )
        seconds = end * behaviour.step_seconds + behaviour.startup_seconds
        self.machine.clock.advance(seconds)
        return training_run(behaviour, seed, points, end, reached=steps is not None and steps <= end)


def training_run(
    behaviour: Behaviour,
    seed: int,
    points: tuple[CurvePoint, ...],
    steps: int,
    *,
    reached: bool,
    losses: int | None = None,
) -> TrainingRun:
    """A training of so many steps on a machine that behaves so; ``losses``: at the most so many, all where None."""
    return TrainingRun(
        seed=seed,
        curve=Curve(seed=seed, points=points, reached=reached, steps_to_target=steps if reached else None),
        seconds=steps * behaviour.step_seconds + behaviour.startup_seconds,
        training_seconds=steps * behaviour.step_seconds,
        evaluation_seconds=0.0,
        evaluations=len(points),
        evaluated_samples=100,
        steps=steps,
        samples=steps * behaviour.samples_per_step,
        fixed_seconds=behaviour.startup_seconds,
        reached=reached,
        losses=tuple(behaviour.loss(step) for step in range(steps)[:losses]),
    )


class World:
    """One loop over a fake machine; ``speed``: times the baseline's, ``reach``: steps to the target or None."""

    budget = 3000.0

    def __init__(
        self,
        directory: Path,
        *strategies: Strategy,
        speed: Callable[[Plan], float],
        reach: Callable[[Plan], int | None] = lambda plan: 600,
        behave: Callable[[Plan, Behaviour], Behaviour] = lambda plan, behaviour: behaviour,
        noise: NoiseModel | None = None,
        stopping: Callable[[], bool] = lambda: False,
        budget: float = budget,
        resume: bool = False,
        memory: int | None = None,
        nproc: str | None = None,
    ) -> None:
        self.clock = FakeClock()
        base = Behaviour(step_seconds=0.05)

        def behaviour(plan: Plan) -> Behaviour:
            return behave(plan, Behaviour(step_seconds=base.step_seconds / speed(plan)))

        machine = FakeMachine(
            behaviour, noise or NoiseModel("normal"), seed=3, clock=self.clock, memory_limit_bytes=memory
        )
        registry = Registry([Source(s, "test") for s in strategies])
        self.runner = FakeRunner(machine, registry, reach)
        files = RunDirectory(directory)
        opened = Run.resume if resume else Run.create
        arguments: tuple[Any, ...] = () if resume else ({}, {})
        directory.mkdir(exist_ok=True)
        self.run = opened(files, *arguments, monotonic=self.clock)
        self.events: list[Event] = []
        announce = Announcer()
        announce.subscribe(self.events.append)
        self.context = RunContext(
            runner=self.runner,
            run=self.run,
            announce=announce,
            choice=Choice(),
            min_gain=0.01,
            seed=0,
            stopping=stopping,
            allocation=BudgetAllocation(budget=budget),
            gate=Gate(
                trainings=Trainings(self.runner, self.run),
                registry=registry,
                seed=0,
                now=self.run.clock.elapsed,
                probes=Probes(self.runner, self.run, directory / "probes"),
            ),
        )
        self.loop = Loop(self.context, Options(budget_seconds=budget, nproc=nproc))

    def go(self) -> Outcome:
        try:
            with patch("os.fsync"):  # for a disk that nobody pulls out, simulated runs waited a tenth of their time
                return self.loop.run()
        finally:
            self.run.close()


def product(factors: dict[str, float]) -> Callable[[Plan], float]:
    """Speeds that multiply."""
    return lambda plan: math.prod(factors[name] for name in plan.names())


def verdicts(outcome: Outcome) -> dict[str, list[Verdict]]:
    found: dict[str, list[Verdict]] = {}
    for trial in outcome.state.all_trials():
        found.setdefault(trial.strategy, []).append(trial.verdict)
    return found
