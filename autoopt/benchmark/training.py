"""A workload assembled under a setup: the run that is measured, and the one that is adopted."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import reduce
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn

from autoopt.benchmark.batch_iterator import BatchIterator
from autoopt.benchmark.clock import StageClock, clock_for, deferred_cost_for, with_epochs
from autoopt.benchmark.compiling import compile_model, new_graph_hook
from autoopt.benchmark.contents import added, samples_of
from autoopt.benchmark.device import Device, open_device
from autoopt.benchmark.distributed.group import Each, Enough, Group, present
from autoopt.benchmark.distributed.replicate import replicate, shared_out
from autoopt.benchmark.distributed.shares import SharedBatches, share_out
from autoopt.benchmark.distributed.step import SharedStep, own_statistics
from autoopt.benchmark.evaluation import Evaluation
from autoopt.benchmark.facts import workload_facts
from autoopt.benchmark.flags import apply_flags
from autoopt.benchmark.live import Printed, Stretch, Values, Wrap
from autoopt.benchmark.loader import lengths, training_loader, validation_loader
from autoopt.benchmark.losses import LossHead, LossRecorder, loss_head, takes_probabilities, transformed_loss
from autoopt.benchmark.optimizer import make_optimizer, stepping_alone, users_factory
from autoopt.benchmark.probe import BatchRecorder
from autoopt.benchmark.schedule import Schedule
from autoopt.benchmark.seeding import mix, next_to_training, random_state, seed_everything, set_random_state
from autoopt.benchmark.switching import PARTS
from autoopt.benchmark.training_step import TrainingStep
from autoopt.benchmark.transfer import mover
from autoopt.errors import TrialFailed, WorkloadError
from autoopt.records.evaluating import HeldEvaluations
from autoopt.records.facts import WorkloadFacts
from autoopt.setup import Setup
from autoopt.workload import Target, Workload

T = TypeVar("T")
_OF_STEP = ("setup", "autocast", "loss", "scaler", "plain_step", "one_step")
"""Attributes that are put back once the training steps as its own setup has it again."""


class Training:
    """A training run, ready for its first step.

    ::

        training = autoopt.apply(workload, plan)
        for batches in training:               # the whole planned run, epoch after epoch
            loss = training.step(batches)      # forward, backward, optimizer, scheduler
            if training.steps % training.evaluate_every == 0:
                print(training.evaluate())

    Args:
        workload: as the user has it, checked; its model and optimizer are used, not copied.
        setup: how it is trained; the workload's own where None.
        seed: of the order of samples and of what the steps draw.
        group: of the processes that train together; the present one, such as torchrun's, where None.

    Attributes:
        steps, samples: trained so far; ``samples`` None where batches cannot be counted. total_steps, steps_per_epoch,
            evaluate_every: with this setup's batch.
        plain_step, one_step: the training step, and ``one_step(batches) -> loss`` as the setup has wrapped it.

    What tasks call is that of :class:`~autoopt.benchmark.live.LiveTraining`.
    """

    takes_batches = restarts = True
    over = evaluates = False  # whoever wants an evaluation asks for it between stretches
    evaluations = 0
    evaluation_seconds: tuple[float, ...] = ()
    switches = PARTS

    def __init__(
        self,
        workload: Workload,
        setup: Setup | None = None,
        *,
        device: str | torch.device | Device = "auto",
        seed: int = 0,
        group: Group | None = None,
    ) -> None:
        self.workload = workload
        self.setup = setup = workload.setup if setup is None else setup
        self.device = device if isinstance(device, Device) else open_device(str(device))
        self.seed = seed
        self.group = present(setup.distributed.processes, self.device.torch) if group is None else group
        if self.group.size != setup.distributed.processes:
            raise WorkloadError(
                f"the setup trains in {setup.distributed.processes} processes, and there are {self.group.size}"
            )
        apply_flags(setup)
        self.clock: StageClock = clock_for(self.device)
        self.deferred_cost = deferred_cost_for(self.device.torch, compiles=setup.compile is not None)
        self.stretch = Stretch(LossRecorder(self.device.kind == "cpu"))
        self.steps = 0
        self.samples: int | None = 0
        self.users_optimizer: Any = None
        with self.device.watched():
            self._assemble()
        # Whatever assembling drew, the steps draw the same numbers under every plan.
        own = () if self.group.first else (self.group.rank,)  # each process draws its own dropout
        seed_everything(mix(seed, "steps", *own) % 2**32)
        self.clock.start()

    def _assemble(self) -> None:
        workload, setup, device = self.workload, self.setup, self.device.torch
        self.loader = training_loader(workload, setup, self.seed)
        self.shared: SharedBatches | None = share_out(self.loader, self.group)
        self.warnings: tuple[str, ...] = self.loader.warnings  # doubts about the workload's data
        self.lengths = lengths(workload, setup, self.loader)
        self.total_steps = self.ends_at = self.lengths.total
        self.steps_per_epoch, self.evaluate_every = self.lengths.per_epoch, self.lengths.evaluate_every
        self._move = move = mover(device, non_blocking=setup.transfer.non_blocking)
        self.batch_iterator = BatchIterator(
            self.loader, move, self.lengths.accumulation, self.clock, setup.transfer.prefetch, device
        )
        self.openings = self.batch_iterator.openings
        self.loss = transformed_loss(workload.loss, setup.loss, device)
        self.model, self.optimizer = self._model_and_optimizer()
        self.roots, self.optimizers = [self.model], [self.optimizer]
        scheduler = workload.scheduler
        for transform in setup.scheduler:
            scheduler = transform(scheduler)
        self.schedule = Schedule(
            self.optimizer,
            scheduler,
            interval="step" if setup.scheduler else workload.scheduler_interval,
            total_steps=self.lengths.user_total,
            steps_ratio=self.lengths.ratio,
            factor=setup.batch.learning_rate_factor,
            warmup_steps=setup.batch.warmup_steps,
        )
        self.batch_iterator.on_epoch = self.schedule.epoch
        self.step_as(setup)
        self.evaluation: Evaluation | None = None
        loader = validation_loader(workload, setup, self.seed)
        if loader is not None and workload.evaluate is not None:
            metric = workload.target.metric if workload.target is not None else None
            self.evaluation = Evaluation(workload.evaluate, loader, move, metric, self._autocast())

    def step_as(self, setup: Setup) -> None:
        """Makes the training step of a setup, over the model, the loss and the optimizer that are there."""
        device, wanted = self.device.torch, setup.distributed
        self.setup = setup
        self.autocast = self._autocast()
        self.scaler = torch.amp.GradScaler(device.type) if setup.precision.loss_scaling else None
        how: dict[str, Any] = {
            "autocast": self.autocast,
            "scaler": self.scaler,
            "clip": self.workload.clip_grad_norm,
            "clock": self.clock,
            "begin": new_graph_hook(device, setup.compile),
        }
        self.plain_step: TrainingStep
        if self.group.size == 1:
            self.plain_step = TrainingStep(self.model, self.loss, self.optimizer, **how)
        else:
            replicated, quiet = replicate(self.model, wanted, device), wanted.quiet_accumulation
            self.plain_step = SharedStep(replicated, self.loss, self.optimizer, quiet=quiet, **how)
        self.one_step: Callable[[list[Any]], torch.Tensor] = self.plain_step.train
        for number, transform in enumerate(setup.step):
            self.one_step = transform(self.one_step if number else self.plain_step)

    def _model_and_optimizer(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        workload, setup = self.workload, self.setup
        given: nn.Module = workload.model
        before = dict(given.named_parameters())
        model = given.to(self.device.torch)
        for transform in setup.model:
            model = transform(model)
            if not isinstance(model, nn.Module):
                raise WorkloadError(f"a model transform returned {type(model).__name__}; wanted: a torch.nn.Module")
        model.to(self.device.torch)
        if not model.training:
            model.train()  # as any loop does; parts that the user froze inside a model in training stay frozen
        if self.device.tensors is not None:
            self.device.tensors.add([*model.parameters(), *model.buffers()])
        if setup.compile is not None:
            compile_model(model, setup.compile)
        model = shared_out(model, setup.distributed)
        names = {id(p): name for name, p in before.items()}
        self.factory = users_factory(workload.optimizer, model, names)

        def remembering(params: Any) -> torch.optim.Optimizer:
            made = self.users_optimizer = self.factory(params)
            return made

        return model, stepping_alone(make_optimizer(remembering, model, setup.optimizer, setup.distributed))

    def _autocast(self) -> torch.autocast | None:
        dtype = self.setup.precision.dtype
        return None if dtype is None else torch.autocast(self.device.torch.type, dtype=getattr(torch, dtype))

    def __len__(self) -> int:
        return self.total_steps

    def __iter__(self) -> Iterator[list[Any]]:
        """The micro-batches of each step, from where the run stands to its planned end."""
        while self.steps < self.total_steps:
            yield self.next()

    def next(self) -> list[Any]:
        """The micro-batches of the next step, on the device; epoch after epoch, without end."""
        return self.batch_iterator.group()

    def step(self, batches: list[Any]) -> torch.Tensor:
        """Trains one optimizer step on micro-batches as ``next`` gives them.

        The loss, detached, on the device: the mean over the samples of all micro-batches.
        """
        return self.advance(batches).detach()

    def advance(self, batches: list[Any]) -> torch.Tensor:
        """The same; the loss may still have its graph, since letting go of it costs short steps a per cent.

        Of several processes each has its own part of the loss: their mean is that of the step.
        """
        read = self.batch_iterator
        samples = read.taken if batches is read.latest else reduce(added, map(samples_of, batches))
        if self.shared is not None and batches is read.latest:  # what part of their batches these are
            weights = self.shared.weights[read.batch - len(batches) : read.batch]
            if isinstance(self.plain_step, SharedStep):
                self.plain_step.weights = weights
            samples = sum(round(weight * count / self.group.size) for weight, count in weights)
        if self.device.tensors is not None:
            self.device.tensors.add(batches)
        with self.device.tensors or nullcontext():
            loss: torch.Tensor = self.one_step(batches)
            if self.setup.step:
                self.clock.mark("whole")  # a step that is replayed as a whole distinguishes no stages
            if not self.schedule.idle:
                self.schedule.step()
                self.clock.mark("optimizer")
        self.steps += 1
        self.samples = added(self.samples, samples)
        read.latest = None
        if read.ahead is not None:
            read.refill()
            self.clock.mark("data")  # where the loader was late, the device has waited for it here
        self.clock.step_done()
        return loss

    # Measuring: see ``autoopt.benchmark.live.LiveTraining``.

    def follow(self, enough: Enough, each: Each | None = None, *, most: int | None = None) -> Stretch:
        """Trains until it is enough; the loop that every measurement runs. Nobody evaluates in the meantime."""
        over = self.group.stretch(enough, each, most)
        clock, deferred, steps, ended = self.clock, self.deferred_cost, 0, False
        recorder, before = LossRecorder(self.device.kind == "cpu"), sum(self.openings)
        self.stretch = Stretch(recorder)
        deferred.begin()
        clock.start()
        while not ended:
            batches = self.next()
            recorder.add(self.advance(batches))
            if deferred.watching:
                deferred.note(batches)
            steps += 1
            ended = over(steps, clock.elapsed())
        lap = clock.stop()
        lap.stages = with_epochs(lap.stages, sum(self.openings) - before)
        self.stretch.laps.append(lap)
        return self.stretch

    def do(self, work: Callable[[], T]) -> T:
        return work()

    uncounted = do

    def wrap_stages(self, wrap: Wrap) -> None:
        for owner, method, stage in (
            (self.plain_step, "forward", "forward"),
            (self.plain_step, "backward", "backward"),
            (self.optimizer, "step", "optimizer"),
            (self, "evaluate", "evaluate"),
        ):
            setattr(owner, method, wrap(stage, getattr(owner, method)))

    @contextmanager
    def stepping_as(self, setup: Setup) -> Iterator[None]:
        now, own = self.setup, {name: getattr(self, name) for name in _OF_STEP}
        try:
            if setup.transfer != now.transfer:
                self._move_by(setup)
            if setup.loss != now.loss:
                self.loss = transformed_loss(self.workload.loss, setup.loss, self.device.torch)
            if setup != now:
                self.step_as(setup)
            yield
        finally:
            if setup.transfer != now.transfer:
                self._move_by(now)
            for name, value in own.items():
                setattr(self, name, value)

    def place(self) -> Callable[[], None]:
        steps, samples, schedule = self.steps, self.samples, deepcopy(self.schedule.state_dict())
        scaler = deepcopy(self.scaler.state_dict()) if self.scaler is not None else None

        def put_back() -> None:
            self.steps, self.samples = steps, samples
            if scaler is not None and self.scaler is not None:
                self.scaler.load_state_dict(scaler)
            self.schedule.load_state_dict(schedule)

        return put_back

    def _move_by(self, setup: Setup) -> None:
        device, how = self.device.torch, setup.transfer
        self.batch_iterator.move_by(mover(device, non_blocking=how.non_blocking), how.prefetch, device)

    def fresh_optimizer(self, optimizer: Any, setup: Setup) -> Any:
        return make_optimizer(self.factory, self.model, setup.optimizer)

    # Microbenchmarks: each stage alone, on held batches; nothing is counted, scheduled or read from the loader.

    def to_device(self, batch: Any) -> Any:
        return batch if self._move is None else self._move(batch)

    def rebatched(self, batch: Any, change: Callable[[Any], Any]) -> Any:
        return change(batch)

    def forward(self, batch: Any) -> torch.Tensor:
        """The loss of one micro-batch on the device, with its graph; CUDA graphs take it for a step of its own."""
        step = self.plain_step
        if step.begin is not None:
            step.begin()
        return step.forward(step.model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        self.plain_step.backward(loss)

    def update(self) -> None:
        """Unscaling, clipping, the optimizer's step, and forgetting the gradients; weights move."""
        self.plain_step.update()

    def whole_step(self, batches: list[Any]) -> torch.Tensor:
        """One optimizer step as the setup has wrapped it; weights move, the schedule does not."""
        return self.one_step(batches)

    @property
    def replicated(self) -> bool:
        return isinstance(self.plain_step, SharedStep)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Nothing is sent by the steps of this process; its weights are the caller's to put back."""
        step, how = self.plain_step, self.setup.distributed
        if not isinstance(step, SharedStep):
            yield
            return
        if how.sharded_optimizer or how.fully_sharded:
            raise TrialFailed("error", "a process that holds a share of the states cannot be measured by itself")
        together, step.model = step.model, self.model
        unchecked, step._unchecked = step._unchecked, 0
        try:
            with own_statistics(self.model):
                yield
        finally:
            step.model, step._unchecked = together, unchecked
            self.group.wait()

    def facts(self, spec: str) -> WorkloadFacts:
        return workload_facts(self, spec)

    @property
    def takes_probabilities(self) -> bool:
        return takes_probabilities(self.forward(self.next()[0]))

    @property
    def loss_head(self) -> LossHead | None:
        return loss_head(self.forward(self.next()[0]))

    @property
    def finds_anomalies(self) -> bool:
        return torch.is_anomaly_enabled()

    def unused_parameters(self) -> list[str]:
        model = self.model
        with next_to_training(model):
            self.backward(self.forward(self.next()[0]))
            return [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None]

    def recorder(self, gradients: int) -> BatchRecorder:
        return BatchRecorder(self, gradients)

    def metric_of(self, lines: list[Printed], known: Values) -> tuple[tuple[str, ...], Target | None, Values]:
        return (), self.workload.target, known

    @property
    def validation_data(self) -> tuple[Any, ...]:
        return () if self.workload.valid_data is None else (self.workload.valid_data,)

    def held_evaluations(self, count: int, seconds: float, stage: str) -> HeldEvaluations:
        evaluation, target, began = self.evaluation, self.workload.target, perf_counter()
        if stage != "evaluate":
            return HeldEvaluations(why="a workload's checkpoints are autoopt's own")
        if evaluation is None:
            return HeldEvaluations(why="the workload has no evaluate")
        walls: list[float] = []
        metrics: dict[str, float] = {}
        while len(walls) < count and (not walls or perf_counter() - began < seconds):
            start = self.device.now()
            metrics = self._evaluated(evaluation)
            walls.append(self.device.now() - start)
        name = target.metric if target is not None else next(iter(metrics), None)
        value = metrics.get(name) if name is not None else None
        return HeldEvaluations(seconds=tuple(walls), samples=evaluation.samples or None, metric=name, value=value)

    def evaluate(self) -> dict[str, float]:
        """The user's metrics of the model as it is now; training goes on as if it had not been called.

        Raises:
            WorkloadError: the workload has no evaluation, or it does not return what it should.
        """
        if self.evaluation is None:
            raise WorkloadError("the workload has no evaluate", hint="give evaluate= and valid_data= to the Workload")
        metrics = self._evaluated(self.evaluation)
        self.clock.mark("evaluate")
        target = self.workload.target
        if target is not None:
            self.schedule.evaluated(metrics[target.metric])
        return metrics

    def _evaluated(self, evaluation: Evaluation) -> dict[str, float]:
        """The metrics as the first process finds them, on all samples; all compute where the model is shared out."""
        with self.device.watched():
            if self._in_shares:
                return self.group.agree(evaluation(self.model))
            return self.group.on_first(lambda: evaluation(self.model))

    @property
    def _in_shares(self) -> bool:
        """Whether each process has a share of the parameters alone."""
        return self.setup.distributed.fully_sharded is not None and self.group.size > 1

    def _states(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Of model and optimizer; all processes call this, and the first has them whole."""
        if self._in_shares:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

            whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
            return get_state_dict(self.model, self.optimizer, options=whole)
        consolidate = getattr(self.optimizer, "consolidate_state_dict", None)
        if consolidate is not None:
            consolidate(to=0)
            return self.model.state_dict(), self.optimizer.state_dict() if self.group.first else None
        return self.model.state_dict(), self.optimizer.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on with the same losses: weights, optimizer, schedule, scaler, generators,
        and the place in the data. Of several processes all call this; the first has what all need."""
        model, optimizer = self._states()
        return {
            "model": model,
            "optimizer": optimizer,
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler is not None else None,
            "random": random_state(),
            "batches": self.batch_iterator.state_dict(),
            "steps": self.steps,
            "samples": self.samples,
            "seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where another run of the same workload, setup and seed stood."""
        if state["seed"] != self.seed:
            warnings.warn(f"the state is of seed {state['seed']}, this run has {self.seed}", stacklevel=2)
        if self._in_shares:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

            states = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
            set_state_dict(self.model, self.optimizer, **states, options=StateDictOptions(full_state_dict=True))
        else:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        if self.scaler is not None and state["scaler"] is not None:
            self.scaler.load_state_dict(state["scaler"])
        self.steps, self.samples = state["steps"], state["samples"]
        self.batch_iterator.load_state_dict(state["batches"])
        set_random_state(state["random"])  # last: finding the place in the data draws numbers
        self.clock.start()

    def close(self) -> None:
        self.batch_iterator.close()
