"""A script's own training, which stands at a step's end, as tasks know one; and the processes of its launcher."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from autoopt.benchmark.compiling import new_graph_hook
from autoopt.benchmark.distributed.group import PATIENCE, Board, Each, Enough, Group, Ranks
from autoopt.benchmark.distributed.replicate import options_of
from autoopt.benchmark.distributed.step import own_statistics
from autoopt.benchmark.facts import workload_facts
from autoopt.benchmark.live import Printed, Values, Wrap
from autoopt.benchmark.loader import Lengths
from autoopt.benchmark.optimizer import make_optimizer, users_factory
from autoopt.benchmark.switching import SCRIPT_PARTS
from autoopt.errors import ScriptEnded, UsageError, WorkloadError
from autoopt.loading.validation import length_of
from autoopt.records.facts import WorkloadFacts
from autoopt.records.protocol import Rank
from autoopt.script.applicable import own_setup
from autoopt.script.applying import low_precision
from autoopt.script.loops import ends_by_result, planned_steps, steps_per_epoch
from autoopt.script.metric import candidates, chosen, target_of, values
from autoopt.script.probe import ScriptRecorder
from autoopt.script.process import ModelCall, Script
from autoopt.script.session import Goal, seconds_by_step
from autoopt.script.tasks import held_evaluations
from autoopt.setup import Precision, Setup
from autoopt.workload import Target, Workload

T = TypeVar("T")


class ScriptRanks(Ranks):
    """One of several processes of a script. What they tell each other goes past the script's own process group.

    Args:
        store: that all of them reach.
    """

    def __init__(self, place: Rank, device: torch.device, store: Any) -> None:
        super().__init__(place.rank, place.size, device, Board(f"{place.folder}/board"))
        self._store, self._said = store, 0

    def gather(self, value: T) -> list[T]:
        self._said += 1
        self._store.set(f"{self._said}/{self.rank}", json.dumps(value, default=_plain))
        found: list[T] = [json.loads(self._store.get(f"{self._said}/{rank}")) for rank in range(self.size)]
        self._store.delete_key(f"{self._said - 1}/{self.rank}")  # who has said this has heard that
        return found

    def agree(self, value: T) -> T:
        return self.gather(value if self.first else None)[0]  # type: ignore[return-value]

    def wait(self) -> None:
        self.gather(None)


def meet(place: Rank | None, device: torch.device) -> Group:
    """The processes of a script, once each of them has come to the end of its first step.

    What they say lies in a file of the trial's private folder: a port could be spoken to by others.
    """
    if place is None:
        return Group()
    store = FileStore(str(Path(place.folder, "said")), place.size)
    store.set_timeout(PATIENCE)
    return ScriptRanks(place, device, store)


def _plain(value: Any) -> Any:
    """A form in JSON of what probes gather."""
    return (
        value.hex() if isinstance(value, bytes) else sorted(value, key=str) if isinstance(value, set) else float(value)
    )


class Models(nn.Module):
    """Several root models as one, for what reads parameters and modules."""

    def __init__(self, roots: list[nn.Module]) -> None:
        super().__init__()
        self.roots = nn.ModuleList(roots)


class NoBatches(IterableDataset[Any]):
    """In place of a dataset where the script's own lines make the batches; there is nothing to be read."""

    empty = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        raise StopIteration


class ScriptTraining:
    """A script's training as tasks know one; see ``autoopt.benchmark.live.LiveTraining``.

    Its batches are the calls of the root models in the first training step.
    """

    takes_batches = restarts = False
    shared = evaluation = ends_at = None
    scaler: torch.amp.GradScaler | None = None
    switches = SCRIPT_PARTS

    def __init__(self, script: Script, group: Group | None = None) -> None:
        self.script, self.session = script, script.session
        self.group = group or Group()
        session = self.session
        self.device, self.clock, self.deferred_cost = session.device, session.clock, session.deferred_cost
        self.openings, self.do, self.uncounted = session.openings, session.in_main, session.uncounted
        self.seed = script.spec.seed
        called = list(script.hooks.roots)
        roots = [getattr(root, "_orig_mod", root) for root in called]
        self._compiled = {id(root): each for root, each in zip(roots, called, strict=True) if each is not root}
        if not roots:
            raise WorkloadError(
                "no model was called in training: its forward pass could not be found",
                hint="call the model itself, as in model(x), rather than one of its methods",
            )
        if self.group.size > 1 and any(  # this process holds a part of a parameter alone (FSDP, in either of its forms)
            hasattr(p, "full_tensor") or type(p).__name__ == "FlatParameter"
            for root in roots
            for p in root.parameters()
        ):
            raise WorkloadError(
                "the script shares its parameters out between its processes (FSDP), so that none has the weights whose "
                "gradients are compared",
                hint="describe the run with build(): autoopt optimize MODULE:ATTR --nproc N, where sharding is a "
                "change",
            )
        self.roots = self._called = roots
        self.model: nn.Module = roots[0] if len(roots) == 1 else Models(roots)
        own = {id(p): p.numel() for root in roots for p in root.parameters()}

        def held(optimizer: Optimizer) -> int:
            return sum(own.get(id(p), 0) for group in optimizer.param_groups for p in group["params"])

        # those that hold parameters of the models, the one with the most first
        self.optimizers = sorted(filter(held, script.hooks.optimizers), key=held, reverse=True)
        self.optimizer = self.users_optimizer = self.optimizers[0]
        recording = script.recording  # it is over
        self.batches: list[list[ModelCall]] = recording.batches
        self.takes_probabilities, self.finds_anomalies = recording.takes_probabilities, recording.finds_anomalies
        self.loss_head = recording.loss_head
        size = max((call.samples for call in self.batches[0]), default=0) or None if self.batches else None
        loaders = script.hooks.roles.training
        loader = loaders[0] if loaders else DataLoader(NoBatches(), batch_size=size)
        self.loader = SimpleNamespace(loader=loader, batch_size=size, warnings=())
        accumulation = max(len(self.batches), 1)
        total = planned_steps(script.batches_per_step if script.hooks.roles.known else 1)
        self.ends_by_result = ends_by_result()
        per_epoch = length_of(loaders[0]) if loaders else None
        per_epoch = None if per_epoch is None else steps_per_epoch(per_epoch, script.batches_per_step)
        every = per_epoch or max((total or 100) // 10, 1)
        self.lengths = Lengths(total or 0, per_epoch, total or 0, per_epoch, 1.0, every, accumulation)
        self.dtype = self.batches[0][0].dtype if self.batches and self.batches[0] else None
        self.autocast = torch.autocast(self.device.torch.type, dtype=self.dtype) if self.dtype is not None else None
        users, metric = own_setup(script.sites()), script.command.metric
        named = None if self.dtype is None else str(self.dtype).removeprefix("torch.")
        found = replace(users, precision=Precision(dtype=named))
        self.workload = Workload(
            model=self.model.module if isinstance(self.model, DistributedDataParallel) else self.model,
            train_data=loader,
            batch_size=size,
            loss=self.loss,
            optimizer=self.optimizer,
            max_steps=total,
            accumulation=accumulation,
            setup=found if not script.setup.precision.dtype else users,
            target=None if metric is None else target_of(metric, script.spec.target),
            adapter="script",
        )
        self.setup = script.registry.fold(script.spec.plan, self.workload.setup)
        self.begin = new_graph_hook(self.device.torch, self.setup.compile)

    # the running script

    @property
    def steps(self) -> int:
        return self.session.steps

    @property
    def samples(self) -> int | None:
        return self.session.samples if self.session.counts else None

    @property
    def evaluates(self) -> bool:
        return self.session.evaluating is not None

    @property
    def over(self) -> bool:
        return self.session.over

    @property
    def evaluations(self) -> int:
        return self.session.evaluations

    @property
    def validation_data(self) -> tuple[Any, ...]:
        sites = self.script.spec.script.sites if self.script.spec.script is not None else None
        lines = {(site.file, site.line) for site in sites.of("loader_validation")} if sites is not None else set()
        return tuple(self.script.hooks.roles.validating(lines))

    @property
    def evaluation_seconds(self) -> tuple[float, ...]:
        return tuple(seconds_by_step(self.session.interruptions("evaluate")).values())

    @property
    def stretch(self) -> Goal:
        assert self.session.goal is not None
        return self.session.goal

    def follow(self, enough: Enough, each: Each | None = None, *, most: int | None = None) -> Goal:
        with suppress(ScriptEnded):
            self.session.run(self.group.stretch(enough, each, most))
        return self.stretch

    @contextmanager
    def stepping_as(self, setup: Setup) -> Iterator[None]:
        if setup.precision.dtype == self.setup.precision.dtype:
            yield
            return
        hooks, before = self.script.hooks, self.script.hooks.precision
        hooks.precision = low_precision(self.session, setup.precision)
        try:
            yield
        finally:
            hooks.precision = before

    def place(self) -> Callable[[], None]:
        return lambda: None  # what a script counts and schedules by itself moves on

    def fresh_optimizer(self, optimizer: Any, setup: Setup) -> Any:
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return make_optimizer(users_factory(optimizer, self.model, names), self.model, setup.optimizer)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Each process trains its own copy of the models for a while."""
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

    def wrap_stages(self, wrap: Wrap) -> None:
        """A script's own lines call its stages."""

    def close(self) -> None:
        """The process ends with its script."""

    # microbenchmarks, on held batches

    def next(self) -> list[Any]:
        """The micro-batches that are held; a script's own data are not touched."""
        return self.batches

    def to_device(self, batch: Any) -> Any:
        return batch

    def rebatched(self, batch: Any, change: Callable[[Any], Any]) -> Any:
        return [call.changed(change) for call in batch]

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """A scalar over all calls of a micro-batch, with a graph; the script's own models as it has compiled them."""
        roots = list(model.roots) if isinstance(model, Models) else [model]
        roots = [self._compiled.get(id(root), root) for root in roots]
        index = {id(root): number for number, root in enumerate(self._called)}
        values = [call(roots[index.get(id(getattr(call.model, "_orig_mod", call.model)), 0)]) for call in batch]
        return values[0] if len(values) == 1 else torch.stack([value.float() for value in values]).sum()

    def forward(self, batch: Any, *, begins: bool = True) -> torch.Tensor:
        """Args: begins: a step with it, and not a further micro-batch of one."""
        if self.begin is not None and begins:
            self.begin()
        with self.autocast or nullcontext():
            return self.loss(self.model, batch)

    def backward(self, loss: torch.Tensor) -> None:
        with torch.autograd.set_detect_anomaly(self.finds_anomalies):  # as the script's own lines do
            loss.backward()  # type: ignore[no-untyped-call]

    def update(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def whole_step(self, batches: list[Any]) -> torch.Tensor:
        loss = None
        for index, batch in enumerate(batches):
            loss = self.forward(batch, begins=index == 0)
            self.backward(loss)
        self.update()
        assert loss is not None
        return loss

    # facts

    @property
    def replicated(self) -> bool:
        return isinstance(self.model, DistributedDataParallel)

    def unused_parameters(self) -> list[str]:
        """None: a script that trains in several processes wraps its models itself, and says so there."""
        return []

    def facts(self, spec: str) -> WorkloadFacts:
        with self.apart():
            facts = workload_facts(self, spec)
        own = {
            "max_steps": self.lengths.total or None,
            "has_evaluate": self.workload.target is not None,
            "dataset": facts.dataset.model_copy(update={"changes": self.script.hooks.roles.dataset_changes}),
            "processes": self.group.size,
            "wrapped": options_of(self._called[0]),
        }
        return facts.model_copy(update=own)

    held_evaluations = held_evaluations

    def recorder(self, gradients: int) -> ScriptRecorder:
        return ScriptRecorder(self, gradients)

    def evaluate(self) -> dict[str, float]:
        raise WorkloadError("a script evaluates by itself, and only where its own loop does so")

    def metric_of(self, lines: list[Printed], known: Values) -> tuple[tuple[str, ...], Target | None, Values]:
        session, metric = self.session, self.script.command.metric
        if metric is None:
            found = candidates(lines)
            taken = chosen(found)
            return (found, None, []) if taken is None else (found, target_of(taken, None), values(taken, lines))
        if not known and (session.evaluations or session.over) and not self.script.command.found:
            raise UsageError(
                f"--metric {metric!r} is in nothing that the script printed or logged in {session.steps} steps "
                f"and {session.evaluations} evaluations",
                hint="a pattern with one group for the number, as the script prints it: 'val loss ([0-9.]+)'",
            )
        return (), self.workload.target, known
