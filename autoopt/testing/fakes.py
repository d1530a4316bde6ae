"""A machine in simulated time: arms whose true speed is known, and noise like a shared computer's.

Nothing sleeps and nothing is timed: a block moves the :class:`FakeClock`. Everything is drawn from
one seed, so that a test that fails, fails again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil, exp, log, pi, sin, sqrt
from typing import Literal

import numpy as np

from autoopt.benchmark.steady import cycle_of
from autoopt.errors import TrialFailed
from autoopt.records import Plan
from autoopt.records.facts import DatasetFacts, LoaderFacts, ModelFacts, OptimizerFacts, WorkloadFacts
from autoopt.records.messages import Block, Ready, Startup

Kind = Literal["quiet", "normal", "heavy", "drifting", "bimodal"]


@dataclass
class FakeClock:
    """Seconds that pass only on request."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True)
class NoiseModel:
    """How block times scatter on a machine.

    Args:
        kind: ``normal``: blocks and processes scatter normally. ``heavy``: Student's t with 3 degrees of freedom,
            and bursts of foreign load of about a second that slow down by half. ``drifting``: normal,
            on a speed that falls steadily and swings. ``bimodal``: a process is fast or slow for
            its whole life, and one block in eight is a third slower. ``quiet``: no noise at all.
        block_sd: standard deviation of the log of a 0.3 s block's time.
        process_sd: the same of a whole process; two processes differ by 1.4 times this.
    """

    kind: Kind = "heavy"
    block_sd: float = 0.06
    process_sd: float = 0.035

    def process(self, rng: np.random.Generator) -> float:
        """A process's own log slowness."""
        if self.kind == "quiet":
            return 0.0
        if self.kind == "bimodal":
            return self.process_sd * (1.0 if rng.random() < 0.5 else -1.0)
        return self.process_sd * float(rng.standard_normal())

    def block(self, rng: np.random.Generator, seconds: float, now: float) -> float:
        """A block's log slowness. ``seconds``: its length; ``now``: when it starts."""
        sd: float = self.block_sd * sqrt(0.3 / max(seconds, 0.01))
        if self.kind == "quiet":
            return 0.0
        if self.kind == "heavy":
            return sd * float(rng.standard_t(3)) / sqrt(3)
        slow: float = sd * float(rng.standard_normal())
        if self.kind == "drifting":
            return slow + 0.002 * now + 0.15 * sin(2 * pi * now / 37.0)
        if self.kind == "bimodal":
            return slow + (0.29 if rng.random() < 0.125 else 0.0)
        return slow


@dataclass(frozen=True)
class LoaderModel:
    """How a loader makes batches.

    Args:
        workers: processes.
        seconds: that a worker takes for a batch.
        jitter: standard deviation of the log of it, batch by batch.
        prefetch: batches that each worker holds ready.
    """

    workers: int
    seconds: float
    jitter: float = 0.0
    prefetch: int = 2


@dataclass
class _Made:
    begun: float
    seconds: float

    @property
    def done(self) -> float:
        return self.begun + self.seconds


class FakeLoader:
    """A loader at work, with worker processes that deliver in order, as torch's.

    Batch k is made by worker k mod W, begun when that worker is free and its slot was handed out (when batch
    k - prefetch x W was taken). The training takes it at the later of its own time and the batch's, in order, and
    computes. So an input-bound training takes W batches at a time: W - 1 steps take what computing takes, and one waits
    for all.

    Args:
        model: how it makes batches.
        now: when it is started, seconds on the machine's clock.
        scatter: ``scatter(sd)`` draws the factor of a batch's seconds.
    """

    def __init__(self, model: LoaderModel, now: float, scatter: Callable[[float], float]) -> None:
        self._model, self._scatter = model, scatter
        self._made: list[_Made] = []
        self._taken = 0
        for _ in range(model.workers * model.prefetch):
            self._hand_out(now)

    def _hand_out(self, now: float) -> None:
        workers = self._model.workers
        free = self._made[-workers].done if len(self._made) >= workers else now
        self._made.append(_Made(max(free, now), self._model.seconds * self._scatter(self._model.jitter)))

    def take(self, now: float) -> float:
        """Takes the next batch: when it is there, at ``now`` or later."""
        there = max(now, self._made[self._taken].done)
        self._taken += 1
        self._hand_out(there)
        return there

    def stopped(self, since: float, now: float) -> None:
        """All workers were stopped from ``since`` until ``now``; what they wait for arrives in the meantime."""
        workers = self._model.workers
        for place in range(self._taken, len(self._made)):
            made = self._made[place]
            free = self._made[place - workers].done if place >= workers else 0.0
            if made.begun >= since:
                made.begun = max(now, free, made.begun)


@dataclass(frozen=True)
class Behaviour:
    """How a plan truly behaves on the simulated machine.

    ``fails`` is raised when the process has trained ``fails_at`` steps (0: while it is built).
    ``loss``: loss by step, the same for every process of this plan.
    ``process_sd``: how its processes scatter (log), where that is not as the machine's do.
    ``quality``: what a probe of it shows next to one of the baseline.
    ``loader``: how batches are made next to training, whose ``step_seconds`` are then those of computing alone; None:
    no step waits. ``slow_mode``: chance of a process, and how much longer its steps then take.
    """

    step_seconds: float = 0.02
    samples_per_step: int = 32
    startup_seconds: float = 2.0
    warm_up_steps: int = 10
    memory_bytes: int = 1 << 28
    loss: Callable[[int], float | None] = lambda step: 2.0 / (1.0 + 0.01 * step)
    fails: TrialFailed | None = None
    fails_at: int = 0
    process_sd: float | None = None
    quality: Literal["identical", "equivalent", "noisy", "undecided", "another"] = "identical"
    loader: LoaderModel | None = None
    slow_mode: tuple[float, float] = (0.0, 1.0)


@dataclass
class FakeMachine:
    """Starts arms; ``machine.start`` is an ``autoopt.search.compare.arm.Start``.

    Args:
        behave: plan to behaviour.
        noise: how its measurements scatter.
        memory_limit_bytes: processes alive at once must fit into it, or the later one runs out of memory.
        exclusive: the device takes one process at a time, as in CUDA's exclusive mode.
        retries_beyond: bytes of processes alive at once beyond which the allocator must free its cache and retry.
    """

    behave: Callable[[Plan], Behaviour] = lambda plan: Behaviour()
    noise: NoiseModel = NoiseModel()
    seed: int = 0
    clock: FakeClock = field(default_factory=FakeClock)
    memory_limit_bytes: int | None = None
    retries_beyond: int | None = None
    exclusive: bool = False

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.alive: list[FakeArm] = []
        self.started: list[tuple[Plan, str]] = []
        self._burst_until = self._next_burst = -1.0

    def start(self, plan: Plan, label: str) -> FakeArm:
        self.started.append((plan, label))
        return FakeArm(self, plan, label)

    def scatter(self, sd: float) -> float:
        """A factor whose log has that standard deviation."""
        return exp(sd * float(self.rng.standard_normal())) if sd else 1.0

    def burst(self, seconds: float) -> float:
        """Share of the coming ``seconds`` that falls into a burst of foreign load."""
        if self.noise.kind != "heavy":
            return 0.0
        if self.clock.now > self._burst_until and self.clock.now >= self._next_burst:
            if self._next_burst >= 0:
                self._burst_until = self.clock.now + float(self.rng.exponential(1.0))
            self._next_burst = max(self.clock.now, self._burst_until) + float(self.rng.exponential(8.0))
        return min(max(self._burst_until - self.clock.now, 0.0) / max(seconds, 1e-9), 1.0)

    def check_memory(self, new: FakeArm) -> None:
        """Raises what a full device raises."""
        if self.exclusive and self.alive:
            raise TrialFailed("crashed", "CUDA error: CUDA-capable device(s) is/are busy or unavailable")
        total = sum(arm.behaviour.memory_bytes for arm in [*self.alive, new])
        if self.memory_limit_bytes is not None and total > self.memory_limit_bytes:
            raise TrialFailed("out_of_memory", f"{total} bytes wanted, {self.memory_limit_bytes} there are")

    def retries(self) -> int:
        """Retries of the allocator in a block of one of those that are alive."""
        total = sum(arm.behaviour.memory_bytes for arm in self.alive)
        return int(self.retries_beyond is not None and total > self.retries_beyond)


class FakeArm:
    """An arm of a :class:`FakeMachine`; it minds that it is frozen, thawed and closed in order."""

    def __init__(self, machine: FakeMachine, plan: Plan, label: str) -> None:
        self.plan = plan
        self.label = label
        self._number = len(machine.started)
        self.behaviour = machine.behave(plan)
        self.frozen = False
        self.closed = False
        self.steps = 0
        self._machine = machine
        own, usual = self.behaviour.process_sd, machine.noise.process_sd
        self._between = machine.noise.process(machine.rng) * (own / usual if own is not None else 1.0)
        chance, slower = self.behaviour.slow_mode
        if chance and machine.rng.random() < chance:
            self._between += log(slower)
        self._loader: FakeLoader | None = None
        self._stopped_at: float | None = None

    def ready(self) -> Ready:
        self._usable()
        self._machine.clock.advance(self.behaviour.startup_seconds)
        if self.behaviour.fails and self.behaviour.fails_at == 0:
            raise self.behaviour.fails
        self._machine.check_memory(self)
        self._machine.alive.append(self)
        return Ready(facts=fake_facts(self.behaviour))

    @property
    def process(self) -> str:
        return f"{self._number:04d}-{self.label}"

    def warm_up(self, max_seconds: float) -> Startup:
        self._usable()
        model = self.behaviour.loader
        if model is not None:
            self._loader = FakeLoader(model, self._machine.clock.now, self._machine.scatter)
        workers = model.workers if model is not None else 0
        block = self._run(max(self.behaviour.warm_up_steps, 6 * workers))
        return Startup(
            build_seconds=self.behaviour.startup_seconds,
            setup_seconds=0.0,
            warmup_seconds=block.seconds,
            warmup_steps=block.steps,
            fixed_seconds=self.behaviour.startup_seconds,
            losses=block.losses,
            cycle=cycle_of(block.step_seconds, workers, block.stage_seconds.get("data", 0.0) / block.seconds),
        )

    def block(self, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        self._usable()
        step = self.behaviour.step_seconds
        if self._loader is not None:
            self._run(max(ceil(ramp_seconds / step), cycle if cycle > 1 else 0))
        else:
            self._machine.clock.advance(max(ramp_seconds, step * cycle if cycle > 1 else 0.0))
        return self._run(cycle * ceil(max(min_steps, round(seconds / step)) / cycle))

    def switched_block(self, plan: Plan, seconds: float, min_steps: int, ramp_seconds: float, cycle: int = 1) -> Block:
        """A block of another plan with this process's own slowness; the process is then as it was."""
        self._usable()
        own, steps = self.behaviour, self.steps
        self.behaviour = self._machine.behave(plan)
        ramp = max(ramp_seconds, self.behaviour.step_seconds) if ramp_seconds else 0.0  # a step that is left out
        self._machine.clock.advance(0.05 + ramp)  # it takes the other plan on, and puts its state back
        try:
            return self.block(seconds, min_steps, 0.0, cycle)
        finally:
            self.behaviour, self.steps = own, steps

    def freeze(self) -> None:
        self._usable()
        self.frozen = True
        self._stopped_at = self._machine.clock.now

    def thaw(self) -> None:
        self.frozen = False
        if self._loader is not None and self._stopped_at is not None:
            self._loader.stopped(self._stopped_at, self._machine.clock.now)
        self._stopped_at = None

    def close(self) -> None:
        self.closed = True
        if self in self._machine.alive:
            self._machine.alive.remove(self)

    def _usable(self) -> None:
        if self.closed or self.frozen:
            raise AssertionError(f"the {self.label} was used while {'closed' if self.closed else 'frozen'}")

    def _run(self, steps: int) -> Block:
        machine, behaviour = self._machine, self.behaviour
        first = self.steps
        self.steps += steps
        if behaviour.fails and self.steps > behaviour.fails_at:
            raise behaviour.fails
        true = steps * behaviour.step_seconds
        burst = machine.burst(true)
        slow = self._between + machine.noise.block(machine.rng, true, machine.clock.now)
        each, waited = (true / steps * exp(slow) * (1.0 + 0.5 * burst),) * steps, 0.0
        if self._loader is not None:
            each, waited = self._loaded(self._loader, each)
        seconds = sum(each)
        if self._loader is None:
            machine.clock.advance(seconds)
        return Block(
            steps=steps,
            samples=steps * behaviour.samples_per_step,
            seconds=seconds,
            stage_seconds={
                "data": waited,
                "forward": 0.4 * (seconds - waited),
                "backward": 0.5 * (seconds - waited),
                "other": 0.1 * (seconds - waited),
            },
            step_seconds=each,
            losses=tuple(behaviour.loss(step) for step in range(first, self.steps)),
            cpu_seconds=seconds,
            foreign_cpu_seconds=(0.02 + 0.8 * burst) * seconds,
            peak_memory_bytes=behaviour.memory_bytes,
            peak_host_memory_bytes=behaviour.memory_bytes,
            allocation_retries=machine.retries(),
            first_step=first,
        )

    def _loaded(self, loader: FakeLoader, computing: tuple[float, ...]) -> tuple[tuple[float, ...], float]:
        """Seconds of each step whose batch comes from a loader, and those that they waited for it in all.

        Args:
            computing: seconds of each step without it.
        """
        clock, steps, waited = self._machine.clock, list[float](), 0.0
        for seconds in computing:
            began = clock.now
            there = loader.take(began)
            waited += there - began
            clock.now = there + seconds
            steps.append(clock.now - began)
        return tuple(steps), waited


def fake_facts(behaviour: Behaviour) -> WorkloadFacts:
    """Facts of a small made-up workload."""
    return WorkloadFacts(
        spec="fake:build",
        name="fake",
        parameters=1000,
        train_samples=3200,
        batch_size=behaviour.samples_per_step,
        max_steps=1000,
        steps_per_epoch=100,
        dataset=DatasetFacts(type="FakeDataset", map_style=True, samples=3200, deterministic=True),
        loader=LoaderFacts(),
        model=ModelFacts(type="Fake", parameters=1000, trainable_parameters=1000, parameter_bytes=4000),
        optimizer=OptimizerFacts(type="SGD", module="torch.optim"),
    )
