"""The script of one process: its hooks, the recorded calls of its first step, and how long its whole run is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map

from autoopt.benchmark.clock import Lap
from autoopt.benchmark.contents import samples_of
from autoopt.benchmark.fingerprint import digests, same_draws
from autoopt.benchmark.losses import LossHead, loss_head, takes_probabilities
from autoopt.benchmark.seeding import mix, seed_everything
from autoopt.benchmark.steady import epoch_start, excess
from autoopt.records import JsonDict, RunParts, Sites
from autoopt.records.protocol import TrialSpec
from autoopt.registry import Registry, load_strategies
from autoopt.script.applicable import added_up
from autoopt.script.applying import Applying, Lean
from autoopt.script.boot import refuse_processes
from autoopt.script.frames import ImportClock, import_sites, user_place
from autoopt.script.hook.seeds import mix_seeds
from autoopt.script.loaders import Watcher
from autoopt.script.metric import MetricReader, overhear
from autoopt.script.observer import Observer
from autoopt.script.session import Session, seconds_of_one, steps_between
from autoopt.script.torch_hooks import TorchHooks


@dataclass
class ModelCall:
    """One training call of a root model: its tensors without their history, and the dtype of autocast around it, None
    where that is off."""

    model: nn.Module
    args: Any
    kwargs: Any
    dtype: torch.dtype | None = None

    def __call__(self, model: nn.Module) -> torch.Tensor:
        """A scalar to begin a backward pass with: the loss that a model returns itself, else the mean of its outputs.

        The script's own loss is made by lines that cannot be called alone; what it costs is small next to the model.

        Args:
            model: the one that was called, or another in its place.
        """
        output = model(*self.args, **self.kwargs)
        leaves = tree_leaves(dict(output) if hasattr(output, "keys") else output)
        floating = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        found = [leaf for leaf in floating if leaf.requires_grad] or floating
        scalars = [leaf for leaf in found if leaf.numel() == 1]
        if scalars:
            return scalars[0].reshape(())
        means = [leaf.float().mean() for leaf in found]
        return torch.stack(means).sum() if len(means) > 1 else means[0]

    @property
    def samples(self) -> int:
        return samples_of((self.args, self.kwargs)) or 0

    def changed(self, change: Callable[[Any], Any]) -> ModelCall:
        """The call with other arguments, ``change`` of all of them as one batch."""
        return replace(self, **change({"args": self.args, "kwargs": self.kwargs}))

    def twice(self) -> ModelCall:
        """The call with each of its samples twice."""

        def doubled(leaf: Any) -> Any:
            rows = isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == self.samples
            return torch.cat([leaf, leaf]) if rows else leaf

        return self.changed(lambda both: tree_map(doubled, both))


class Recording(Watcher):
    """Holds the calls of the script's first training step, digests of the host batch that it began with, and what its
    losses are.

    Attributes:
        takes_probabilities, loss_head: of its losses (``benchmark.losses``), the head of the latest.
        finds_anomalies: backward passes run under ``torch.autograd.detect_anomaly``.

    Args:
        pieces: backward passes that the script makes of each batch of a loader.
    """

    def __init__(self, pieces: int = 1) -> None:
        self._pieces = pieces
        self._calls: list[list[ModelCall]] = []  # before each backward pass, or of each batch of a loader
        self._lines: Counter[Any] = Counter()
        self.host_digests: tuple[str, str, str] | None = None
        self.takes_probabilities = self.finds_anomalies = False
        self.loss_head: LossHead | None = None
        self._next = True
        self._loads = False

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        if training:
            self._next = self._loads = True
            self.host_digests = digests(batch, drawn) if self.host_digests is None else self.host_digests

    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None:
        if not training:
            return
        if self._next:
            self._calls.append([])
            self._next = False
        kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        args, kwargs = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        self._calls[-1].append(ModelCall(model, args, kwargs, dtype))

    def backward(self, loss: Any) -> None:
        self.finds_anomalies = self.finds_anomalies or torch.is_anomaly_enabled()
        if isinstance(loss, torch.Tensor):
            self.takes_probabilities = self.takes_probabilities or takes_probabilities(loss)
            self.loss_head = loss_head(loss)
        if not self._loads or self._pieces > 1:
            self._next = True
            self._lines[user_place()] += 1

    @property
    def batches(self) -> list[list[ModelCall]]:
        """The calls of each micro-batch, in their order; losses of several lines without a loader are terms of one."""
        terms = not self._loads and self._pieces == 1 and max(self._lines.values(), default=0) == 1
        return [[call for calls in self._calls for call in calls]] if terms and self._calls else self._calls


def run_parts(training: Any, lap: Lap) -> RunParts:
    """All parts that are known by now.

    Args:
        lap: of steps that it has trained since its first.
    """
    session, step = training.session, median(lap.steps) if lap.steps else None
    evaluations, saved = session.interruptions("evaluate"), session.interruptions("checkpoint")
    first_batch = session.openings[0] if session.openings else None if training.script.hooks.roles.known else 0.0
    begun = session.began if session.first_at is None else session.first_at
    ready = session.began if session.first_step_at is None else session.first_step_at
    before, (unused, reading) = training.script.imports_seconds, training.script.hooks.roles.passed_over
    return RunParts(
        imports_seconds=None if before is None else before + (session.imports or 0.0),
        build_seconds=max(begun - session.began - (session.imports or 0.0), 0.0),
        first_batch_seconds=first_batch,
        warm_up_seconds=max(ready - begun - (first_batch or 0.0) - (step or 0.0), 0.0) + excess(lap.steps),
        step_seconds=step,
        steps=training.lengths.total or None,
        steps_per_epoch=training.lengths.per_epoch,
        epoch_seconds=epoch_start(
            session.openings, training.loader.loader, lap.stages.get("data", 0.0) / max(len(lap.steps), 1)
        ),
        evaluation_seconds=seconds_of_one(evaluations),
        evaluate_every=steps_between(evaluations, session.steps),
        checkpoint_seconds=seconds_of_one(saved),
        checkpoint_every=steps_between(saved, session.steps),
        evaluations=tuple(each.evaluated() for each in evaluations),
        ends_by_result=training.ends_by_result,
        passed_over=unused,
        passed_over_seconds=reading,
    )


class Script:
    """A script that is listened to.

    Args:
        spec: the trial's; ``spec.script.sites`` None has it watched.
        stops: whether it stops at steps' ends for its parent; False trains for real.
        start: ``path`` and ``early``, see :class:`~autoopt.records.Sites`.
        imports_seconds: of the interpreter and its imports up to torch; None where they were not the script's own.
        imports: the clock of imports, which stands still.
    """

    def __init__(
        self, spec: TrialSpec, *, stops: bool, start: JsonDict, imports_seconds: float | None, imports: ImportClock
    ) -> None:
        assert spec.script is not None
        self._start, self.imports_seconds, self._imports = start, imports_seconds, imports
        self.spec, self.command = spec, spec.script
        sites = spec.script.sites
        self.session = Session(
            stops=stops, counts=sites is None or sites.unit == "samples", memory_limit=spec.memory_limit_bytes
        )
        self.hooks = TorchHooks(self.session, period=sites.period if sites is not None else ())
        if sites is not None:
            self.hooks.trains_in_eval = any(site.options.get("mode") == "eval" for site in sites.of("model"))
        self.observer = Observer(self.hooks) if sites is None else None
        self.registry: Registry = load_strategies(spec.strategies)
        self.setup = self.registry.fold(spec.plan)
        self.pieces = 1
        if sites is not None and self.setup.batch.accumulation is not None:  # its lines say so
            count = self.setup.batch.accumulation
            more = count / added_up(self.setup.batch.size, count, sites)
            self.pieces, self.session.loss_factor = max(round(more), 1), more
        self.recording = Recording(self.pieces)
        if stops:
            place = spec.rank
            refuse_processes(1 if place is None else place.size)
            if spec.same_draws:
                same_draws()
            own = () if place is None or place.rank == 0 else (place.rank,)  # each process draws its own
            seed_everything(mix(spec.seed, *own) if own else spec.seed)  # the script's own seeds come after
            if not spec.script.own_seeds:
                mix_seeds(spec.seed)
            self.hooks.watchers.append(self.recording)
        if spec.lean:
            self.hooks.watchers.append(Lean(self.session))
        if self.observer is not None:
            self.observer.install()
        if self.command.metric is not None:
            MetricReader(self.command.metric, self.session.metric).install()
        elif stops:
            overhear(self.session.line)
        Applying(self.hooks, spec, self.setup, compared=stops).install()
        self.hooks.install()
        if self.observer is not None:
            self._imports.seconds = 0.0
            self._imports.start()
        self.session.began = perf_counter()  # what listening itself has imported is no part of the script's start

    def stop_recording(self) -> None:
        """The first step has ended, and what it read is known."""
        if self.observer is not None:
            self.session.imports = self._imports.stop()
        self.hooks.watchers.remove(self.recording)

    def why_never_trained(self) -> str:
        """The script has ended without a training step."""
        if not self.hooks.optimizers:
            return "the script ended without having made an optimizer"
        if not self.hooks.roots:
            return "the script ended without having called a model in training (grad enabled, in training mode)"
        return "the script ended without a step of its optimizer"

    def sites(self) -> Sites:
        """The sites of the script that were seen so far."""
        if self.observer is None:
            assert self.command.sites is not None
            return self.command.sites
        found = self.observer.sites(self.command.command)
        sites = (*found.sites, *import_sites(self._imports))
        return found.model_copy(update={**self._start, "sites": sites})

    @property
    def batches_per_step(self) -> int:
        """Batches of a loader that a training step takes."""
        return max(len(self.recording.batches) // self.pieces, 1)
