"""A script in its process as tasks know a trial: a context, and a training that stands at a step's end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from autoopt.benchmark import affinity
from autoopt.benchmark.clock import Lap
from autoopt.benchmark.compiling import new_graph_hook
from autoopt.benchmark.device import host_peak_bytes
from autoopt.benchmark.distributed.group import Group
from autoopt.benchmark.distributed.replicate import options_of
from autoopt.benchmark.distributed.step import own_statistics
from autoopt.benchmark.facts import workload_facts
from autoopt.benchmark.lengths import Lengths
from autoopt.benchmark.loss_recorder import LossRecorder
from autoopt.benchmark.whatif import SECONDS, ratio_with
from autoopt.errors import WorkloadError
from autoopt.records import JsonDict
from autoopt.records.evaluating import HeldEvaluations
from autoopt.records.facts import WorkloadFacts
from autoopt.script.evaluations import held_evaluations
from autoopt.script.goal import Enough, Goal
from autoopt.script.metric import direction_of, name_of
from autoopt.script.planned import steps_per_epoch
from autoopt.script.probe import probe
from autoopt.script.process import Script
from autoopt.script.ranks import meet, without_waiting
from autoopt.script.recording import MicroBatch
from autoopt.script.refusals import shared_out
from autoopt.script.switching import ScriptSwitching
from autoopt.script.training_run import ScriptRun
from autoopt.setup import Precision, Setup
from autoopt.workload import Workload

ADAPTER = "script"

Each = Callable[[int, float], None]


class ScriptContext:
    """The first argument of every task in the process of a script; see ``TrialContext``.

    Args:
        script: which has ended its first training step.
        emit: tells the parent how a task stands.
    """

    def __init__(self, script: Script, emit: Callable[[JsonDict], None]) -> None:
        script.stop_recording()
        self.script, self.emit = script, emit
        self.spec, self.registry = script.spec, script.registry
        self.seed = script.spec.seed
        session = script.session
        assert session.device is not None
        self.device = session.device
        assert session.first_step_at is not None
        self.build_seconds = session.first_step_at - session.began
        self.setup_seconds = 0.0
        self.inspected: dict[str, JsonDict] = {}
        self.under_way: ScriptRun | None = None
        self.training = ScriptTraining(script, meet(script.spec.rank, session.device.torch))
        self.workload = self.training.workload
        self.setup = self.registry.fold(script.spec.plan, self.workload.setup)
        self.training.setup = self.setup

    @cached_property
    def facts(self) -> WorkloadFacts:
        """Facts of the script that strategies may know."""
        assert self.script.spec.script is not None
        with self.training.apart():
            facts = workload_facts(self.training, self.spec.workload)  # type: ignore[arg-type]
        lost = affinity.lost_affinity_warning(self.cores_at_start, "what the script imports")
        warnings = (*facts.warnings, lost) if lost else facts.warnings
        return facts.model_copy(update={"adapter": ADAPTER, "warnings": warnings, **self.training.facts_of_batch()})

    @property
    def cores_at_start(self) -> tuple[int, ...]:
        """Cores that the process could use before the script was run."""
        return affinity.AT_START

    def unused_parameters(self) -> list[str]:
        """None: a script that trains in several processes wraps its models itself, and says so there."""
        return []

    @cached_property
    def switching(self) -> ScriptSwitching:
        """Takes other setups on and off the script, as it stands when this is first asked for."""
        return ScriptSwitching(self.script, self.training)

    def training_run(self, **arguments: Any) -> ScriptRun:
        """A training from here to the target, a limit or the script's own end."""
        return ScriptRun(self, **arguments)

    def probe(self, *, batches: str = "", **arguments: Any) -> JsonDict:
        """Probes the plan; see ``autoopt.script.probe``. A script's batches are its own: none are handed to it."""
        return probe(self, **arguments)

    def evaluations(self, count: int, seconds: float) -> HeldEvaluations:
        """Evaluations at the present weights; see ``autoopt.script.evaluations``."""
        return held_evaluations(self, count, seconds)

    @property
    def target(self) -> float | None:
        """The value of the metric that is to be reached, where the user gave one."""
        return self.spec.target

    def ratio_with(
        self,
        change: Callable[[Any], Any] | None = None,
        *,
        dtype: Any = None,
        matmul: str | None = None,
        rebatch: Callable[[Any], Any] | None = None,
        seconds: float = SECONDS,
    ) -> float | None:
        """Forward and backward with a change over without, tried on copies (``benchmark.whatif.ratio_with``)."""
        if rebatch is not None:
            return None  # what its models are called with was made of a batch by the script's own lines
        return ratio_with(self.training, change, dtype=dtype, matmul=matmul, seconds=seconds)  # type: ignore[arg-type]

    @property
    def takes_probabilities(self) -> bool:
        """Whether a loss of the script is ``binary_cross_entropy`` of probabilities."""
        return self.script.recording.takes_probabilities


class Models(nn.Module):
    """Several root models as one, for what looks at parameters and modules."""

    def __init__(self, roots: list[nn.Module]) -> None:
        super().__init__()
        self.roots = nn.ModuleList(roots)


class NoBatches(IterableDataset[Any]):
    """In place of a dataset where the script's own function makes the batches; there is nothing to be read."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise StopIteration


class _NoSchedule:
    """The script steps its own schedules; microbenchmarks do not."""

    def state_dict(self) -> JsonDict:
        return {}

    def load_state_dict(self, state: JsonDict) -> None: ...


class ScriptTraining:
    """A script's training as microbenchmarks and blocks know one; see ``benchmark.training.Training``.

    Its batches are the calls of the root models in the first training step.

    Args:
        script: which stands at a step's end.
        group: the processes of its launcher.
    """

    shared = None

    def __init__(self, script: Script, group: Group | None = None) -> None:
        self.script, self.session = script, script.session
        self.group = group or Group()
        assert script.session.device is not None
        assert script.session.clock is not None
        assert script.session.deferred_cost is not None
        self.device, self.clock, self.deferred_cost = (
            script.session.device,
            script.session.clock,
            script.session.deferred_cost,
        )
        self.seed = script.spec.seed
        roots = [getattr(root, "_orig_mod", root) for root in script.joints.roots]
        if not roots:
            raise WorkloadError(
                "no model was called in training: its forward pass could not be found",
                hint="call the model itself, as in model(x), rather than one of its methods",
            )
        if self.group.size > 1 and any(_is_shared_out(p) for root in roots for p in root.parameters()):
            raise shared_out()
        self.roots = self._called = roots
        self.model: nn.Module = roots[0] if len(roots) == 1 else Models(roots)
        self.optimizers = self._stepping()
        self.optimizer: Optimizer = self.optimizers[0]
        self.users_optimizer = self.optimizer
        self.batches: list[MicroBatch] = script.recording.batches
        loaders = script.joints.roles.training
        self.loader = SimpleNamespace(
            loader=loaders[0] if loaders else DataLoader(NoBatches(), batch_size=self._size()),
            batch_size=self._size(),
            warnings=(),
            length=None,
        )
        self.accumulation = max(len(self.batches), 1)
        total = script.planned_steps()
        per_epoch = _length(loaders[0]) if loaders else None
        per_epoch = None if per_epoch is None else steps_per_epoch(per_epoch, self.accumulation)
        every = per_epoch or max((total or 100) // 10, 1)
        self.lengths = Lengths(total or 0, per_epoch, total or 0, per_epoch, 1.0, every, self.accumulation)
        self.dtype = self.batches[0][0].dtype if self.batches and self.batches[0] else None
        self.autocast = torch.autocast(self.device.torch.type, dtype=self.dtype) if self.dtype is not None else None
        found = Setup(precision=Precision(dtype=_named(self.dtype)))
        self.workload = Workload(
            model=self.model.module if isinstance(self.model, DistributedDataParallel) else self.model,
            train_data=self.loader.loader,
            batch_size=self._size(),
            loss=self.loss,
            optimizer=self.optimizer,
            max_steps=total,
            accumulation=self.accumulation,
            setup=found if not script.setup.precision.dtype else Setup(),
        )
        self.setup = self.workload.setup
        self.evaluation = self.scaler = None
        self.schedule = _NoSchedule()
        self.begin = new_graph_hook(self.device.torch, script.setup.compile)

    def _stepping(self) -> list[Optimizer]:
        """The optimizers that hold parameters of the models, the one with the most first."""
        own = {id(p): p.numel() for root in self.roots for p in root.parameters()}

        def held(optimizer: Optimizer) -> int:
            return sum(own.get(id(p), 0) for group in optimizer.param_groups for p in group["params"])

        return sorted(filter(held, self.script.joints.optimizers), key=held, reverse=True)

    def _size(self) -> int | None:
        return self.batches[0].samples or None if self.batches else None

    # the running script

    @property
    def steps(self) -> int:
        return self.session.steps

    @property
    def samples(self) -> int | None:
        return self.session.samples if self.session.counts else None

    @property
    def openings(self) -> list[float]:
        """Seconds until the first batch of each epoch so far was there."""
        return self.session.between.openings

    @property
    def warnings(self) -> tuple[str, ...]:
        return ()

    @property
    def total_steps(self) -> int:
        return self.lengths.total

    @property
    def steps_per_epoch(self) -> int | None:
        return self.lengths.per_epoch

    @property
    def evaluate_every(self) -> int:
        return self.lengths.evaluate_every

    def run_until(self, enough: Enough, most: int | None = None) -> tuple[Lap, LossRecorder]:
        """Lets the script train; see ``Session.run_until``. Of several processes the first is asked, for all."""
        goal = self.follow(enough, most=most, to_its_end=False, rests=0.0)
        return without_waiting(goal.lap(), goal.away, self.group), goal.captured

    def follow(
        self,
        enough: Enough,
        each: Each | None = None,
        *,
        most: int | None = None,
        to_its_end: bool = True,
        rests: float | None = None,
    ) -> Goal:
        """Lets the script train on, all processes to the same step.

        Args:
            enough: asked at each step's end with the steps and seconds so far, of the first process alone.
            each: called there in every process, before.
            most: steps after which ``enough`` says so in any case.
            to_its_end: it does not matter that the script comes to its end before.
            rests: for so many seconds of nothing but steps neither need be asked again; None: each step is looked at.
        """
        agreed = self.group.agreed(enough, most)
        self.group.wait()

        def over(done: int, elapsed: float) -> bool:
            if each is not None:
                each(done, elapsed)
            return agreed(done, elapsed)

        run = self.session.run_until_over if to_its_end else self.session.run
        if self.group.size > 1:  # they ask each other at every step's end
            return run(over)
        return run(over if each is not None else enough, rests=rests, most=most, looks=each is not None)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Each process trains its own copy of the models for a while; see ``benchmark.distributed.step.apart``."""
        if self.group.size == 1:
            yield
            return
        together, whole = self.roots, self.model
        self.roots = [root.module if isinstance(root, DistributedDataParallel) else root for root in together]
        self.model = self.roots[0] if len(together) == 1 else Models(self.roots)
        try:
            with own_statistics(self.model):
                yield
        finally:
            self.roots, self.model = together, whole
            self.group.wait()

    def profiled(self, profiler: Any, steps: int) -> None:
        """Lets the script train so many steps under torch's profiler, which listens to the thread that trains."""

        self.session.in_main(profiler.start)
        self.follow(lambda done, _: done >= steps, lambda *_: profiler.step(), most=steps)
        self.session.in_main(profiler.stop)

    def host_peak_bytes(self) -> int | None:
        return host_peak_bytes()

    def step_by_stages(self) -> None:
        """Every step of a script goes through its own calls."""

    # microbenchmarks, on held batches

    def next(self) -> list[Any]:
        """The micro-batches that are held; a script's own data are not touched."""
        return self.batches

    def to_device(self, batch: Any) -> Any:
        return batch

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """A scalar over all calls of a micro-batch, with a graph."""
        roots = list(model.roots) if isinstance(model, Models) else [model]
        values = [call(roots[self._index(call.model)]) for call in batch]
        return values[0] if len(values) == 1 else torch.stack([value.float() for value in values]).sum()

    def _index(self, model: nn.Module) -> int:
        model = getattr(model, "_orig_mod", model)
        return next((index for index, root in enumerate(self._called) if root is model), 0)

    def forward(self, batch: Any) -> torch.Tensor:
        if self.begin is not None:
            self.begin()
        with self.autocast or nullcontext():
            return self.loss(self.model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def whole_step(self, batches: list[Any]) -> torch.Tensor:
        loss = None
        for batch in batches:
            loss = self.forward(batch)
            self.backward(loss)
        self.update()
        assert loss is not None
        return loss

    one_step = whole_step

    # facts

    def facts_of_batch(self) -> JsonDict:
        """Facts of a script's batches beside its dataset."""
        metric, total = self.script.command.metric, self.lengths.total
        found: JsonDict = {"max_steps": total or None, "has_evaluate": metric is not None}
        found |= {"processes": self.group.size, "wrapped": options_of(self._called[0])}
        if metric is not None:
            found |= {"metric": name_of(metric), "mode": direction_of(metric), "target": self.script.spec.target}
        return found


def _is_shared_out(parameter: nn.Parameter) -> bool:
    """Whether this process holds a part of a parameter alone (FSDP, in either of its forms)."""
    return hasattr(parameter, "full_tensor") or type(parameter).__name__ == "FlatParameter"


def _named(dtype: torch.dtype | None) -> str | None:
    return {torch.bfloat16: "bfloat16", torch.float16: "float16"}.get(dtype) if dtype is not None else None


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
