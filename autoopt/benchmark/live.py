"""The training that tasks work with: the one that a ``build()`` describes, or a script's own, behind one protocol."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from autoopt.benchmark.clock import DeferredCost, Lap, StageClock
from autoopt.benchmark.device import Device
from autoopt.benchmark.distributed.group import Each, Enough, Group, without_waiting
from autoopt.benchmark.loader import Lengths
from autoopt.benchmark.losses import LossHead, LossRecorder
from autoopt.errors import ScriptEnded
from autoopt.records.evaluating import HeldEvaluations
from autoopt.records.facts import WorkloadFacts
from autoopt.setup import Setup
from autoopt.workload import Target, Workload

Wrap = Callable[[str, Callable[..., Any]], Callable[..., Any]]
"""``wrap(stage, function)``, in place of the function."""
Task = TypeVar("Task", bound=Callable[..., Any])
Values = list[tuple[int, float, float]]
"""Of a metric: the step and the seconds at which each was reported, and the value."""


def drives(task: Task) -> Task:
    """Marks a task that lets the training go on. All others compute, in the thread that trains, between two steps."""
    task.drives = True  # type: ignore[attr-defined]
    return task


@dataclass(frozen=True)
class Printed:
    """A line that a script printed: the training step, seconds, and in or after which evaluation; None: as it trained,
    where the first of those is kept that are alike.
    """

    step: int
    seconds: float
    evaluation: int | None
    text: str


@dataclass
class Stretch:
    """Steps that were trained one after another, and what was measured on the way.

    ``laps``: of training alone; what lay between them is in ``aside``, seconds by stage. ``metrics``: values of the
    target's metric with the step and the seconds at which each was reported, evaluations included. ``lines``: that were
    printed at evaluations. ``away``: for each step, seconds of it in which the training evaluated or saved, or was
    examined.
    """

    captured: LossRecorder
    laps: list[Lap] = field(default_factory=list)
    aside: dict[str, float] = field(default_factory=dict)
    metrics: Values = field(default_factory=list)
    lines: list[Printed] = field(default_factory=list)
    away: list[float] = field(default_factory=list)

    def lap(self) -> Lap:
        stages: dict[str, float] = {}
        for lap in self.laps:
            for stage, seconds in lap.stages.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
        return Lap(sum(lap.seconds for lap in self.laps), stages, [step for lap in self.laps for step in lap.steps])


class LiveTraining(Protocol):
    """A training in its own process, between two of its steps. Whatever tasks call is here.

    Attributes:
        takes_batches: steps train on whatever batches they are given; else on those that are held alone, since a
            script's own lines make of a batch what its models are called with.
        restarts: it can be begun again in this process.
        workload: as the user has it; of a script, as far as its objects tell.
        clock, deferred_cost: what measures its stages, and what it pays once.
        model: all that is trained, as one module; ``roots``: the modules that its steps call.
        optimizer: the one that holds most of the model; ``optimizers``: all; ``users_optimizer``: as the user made it.
        loader: ``loader.loader`` gives the batches of ``loader.batch_size`` samples.
        evaluation: the user's; None where there is none, or where the training makes it by itself.
        openings: seconds until the first batch of each epoch was there.
        evaluates: an evaluation of its own is under way.
        evaluations: that it made by itself so far; ``evaluation_seconds``: of each, as far as they were timed.
        validation_data: what evaluations read, loaders or a dataset, as far as that is known.
        stretch: the one that is under way, or was the latest.
        ends_at: the step at which it ends where nobody says otherwise; None where it comes to its end by itself.
        switches: parts of a setup that it can take on while it runs (``autoopt.benchmark.switching``).
        replicated: the processes send each other gradients in each step.
        takes_probabilities: its loss is ``binary_cross_entropy`` of probabilities.
        loss_head: the layer that makes the logits of its loss; None where it is not known or there is none.
        finds_anomalies: its backward passes run under ``torch.autograd.detect_anomaly``.
    """

    takes_batches: bool
    restarts: bool
    workload: Workload
    setup: Setup
    device: Device
    group: Group
    clock: StageClock
    deferred_cost: DeferredCost
    model: nn.Module
    roots: list[nn.Module]
    optimizer: Any
    optimizers: list[Any]
    users_optimizer: Any
    loader: Any
    shared: Any
    lengths: Lengths
    autocast: torch.autocast | None
    scaler: torch.amp.GradScaler | None
    evaluation: Any
    openings: list[float]
    switches: frozenset[str]

    @property
    def steps(self) -> int: ...
    @property
    def samples(self) -> int | None: ...
    @property
    def evaluates(self) -> bool: ...
    @property
    def over(self) -> bool: ...
    @property
    def evaluations(self) -> int: ...
    @property
    def evaluation_seconds(self) -> tuple[float, ...]: ...
    @property
    def validation_data(self) -> tuple[Any, ...]: ...
    @property
    def stretch(self) -> Stretch: ...
    @property
    def ends_at(self) -> int | None: ...
    @property
    def replicated(self) -> bool: ...
    @property
    def takes_probabilities(self) -> bool: ...
    @property
    def finds_anomalies(self) -> bool: ...
    @property
    def loss_head(self) -> LossHead | None: ...

    # training on

    def follow(self, enough: Enough, each: Each | None = None, *, most: int | None = None) -> Stretch:
        """Trains on as it would by itself, evaluations of its own included, to its own end at the latest.

        Args:
            enough: asked after each step with the steps and seconds so far, of the first process for all.
            each: called in every process at the end of a step, before ``enough``.
            most: steps after which ``enough`` says so in any case; several processes need to know.
        """

    def do(self, work: Callable[[], Any]) -> Any:
        """Does something in the thread that trains, between two steps; what it returns."""

    def uncounted(self, work: Callable[[], None]) -> None:
        """Does something at the end of a step, called from ``each`` or between stretches; off the clock."""

    def wrap_stages(self, wrap: Wrap) -> None:
        """From now on each stage is called through what ``wrap(stage, function)`` makes of it.

        The wait for data is not: torch's profiler names it itself. A script's stages are called by its own lines.
        """

    def stepping_as(self, setup: Setup) -> AbstractContextManager[None]:
        """Steps as another setup has them, over the same weights; see ``autoopt.benchmark.switching``."""

    def place(self) -> Callable[[], None]:
        """Keeps what it counts and schedules by itself; puts that back when called."""

    def fresh_optimizer(self, optimizer: Any, setup: Setup) -> Any:
        """One of its optimizers as a setup makes it, without state."""

    # microbenchmarks, on held batches: nothing is counted, scheduled or read from the loader

    def next(self) -> list[Any]:
        """The micro-batches of the next step; the held ones, where the training takes no others."""

    def to_device(self, batch: Any) -> Any: ...
    def rebatched(self, batch: Any, change: Callable[[Any], Any]) -> Any:
        """A micro-batch with other contents: ``change`` of it, or of the arguments of each call that it consists of."""

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor: ...
    def forward(self, batch: Any) -> torch.Tensor: ...
    def backward(self, loss: torch.Tensor) -> None: ...
    def update(self) -> None: ...
    def whole_step(self, batches: list[Any]) -> torch.Tensor: ...

    def apart(self) -> AbstractContextManager[None]:
        """Each process trains by itself for a while, at its own speed, for what is measured or examined in it.

        Raises:
            TrialFailed: the processes share parameters or states out, so that none can train by itself.
        """

    # what is known of it

    def facts(self, spec: str) -> WorkloadFacts:
        """Facts that strategies may know; ``spec``: the import string or command."""

    def held_evaluations(self, count: int, seconds: float, stage: str) -> HeldEvaluations:
        """Evaluations at the present weights, so many; none is begun or waited for after so many ``seconds``.

        ``stage``: ``checkpoint`` for checkpoints in their place.
        """

    def recorder(self, gradients: int) -> Any:
        """Probes its plan: an ``autoopt.benchmark.probe.Recorder``, of so many batches at each set of weights."""

    def unused_parameters(self) -> list[str]:
        """Trainable parameters that a step leaves without a gradient; needed to average those of several processes."""

    def evaluate(self) -> dict[str, float]:
        """The user's metrics of the model as it is now; where it has an ``evaluation``."""

    def metric_of(self, lines: list[Printed], known: Values) -> tuple[tuple[str, ...], Target | None, Values]:
        """Patterns of what may be the metric where nobody named one, the one that is taken, and its values.

        Raises:
            UsageError: it was named, and nothing reported it.
        """

    def close(self) -> None:
        """Ends what it has started next to itself, such as a loader's workers."""


def run_until(training: LiveTraining, enough: Enough, most: int | None = None) -> tuple[Lap, LossRecorder]:
    """Trains on, and measures steps and losses; see :meth:`LiveTraining.follow`.

    Raises:
        ScriptEnded: it came to its own end before.
    """
    stretch = training.follow(enough, most=most)
    if training.over:
        raise ScriptEnded(training.steps)
    return without_waiting(stretch.lap(), stretch.away, training.group), stretch.captured
