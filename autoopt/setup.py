"""How a workload is trained, as frozen data.

A strategy is a pure function from one :class:`Setup` to the next. The same ``Setup`` is what a
trial's process trains with and what the exporter prints, so the exported script is what was
measured. The empty ``Setup()`` changes nothing: it is the user's own way.

Transforms (``with_dataset`` and so on) are kept in the order in which they were added. Each
must be a module-level function, a ``functools.partial`` of one, or an instance of a frozen
dataclass with ``__call__``: something with importable source, since the exporter prints it.
A :class:`Wrap` is also written into a script's patch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Wrap:
    """``name(x, **options)``, a transform that a script's patch says as that call.

    The class or function, with what it needs of its module, is printed into a file next to the script: plain code of
    torch and the standard library alone, which a reviewer reads.

    Args:
        name: ``module:name`` of a class or function at the top level of its module, imported when it is called.
        options: plain values by keyword.
        evaluation: around a collate function: a script's evaluations that make batches of the same class of samples by
            the same function get it as well.
    """

    name: str
    options: tuple[tuple[str, Any], ...] = ()
    evaluation: bool = False

    @classmethod
    def of(cls, function: Callable[..., Any], **options: Any) -> Wrap:
        """The wrap of a class or function that is at hand."""
        return cls(f"{function.__module__}:{function.__qualname__}", tuple(options.items()))

    def __call__(self, wrapped: Any) -> Any:
        return self.function(wrapped, **dict(self.options))

    @property
    def function(self) -> Callable[..., Any]:
        """The class or function itself."""
        module, _, name = self.name.partition(":")
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return found


_DTYPES = ("bfloat16", "float16")
_MATMUL = ("highest", "high", "medium")


def _frozen(options: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    return MappingProxyType(dict(options or {}))


@dataclass(frozen=True)
class Transfer:
    """How batches reach the device. ``prefetch``: batches copied ahead on a side stream."""

    non_blocking: bool = False
    prefetch: int = 0


@dataclass(frozen=True)
class Precision:
    """Autocast dtype (``None``: off), gradient scaler, and float32 matmul precision (``None``: as it is)."""

    dtype: str | None = None
    loss_scaling: bool = False
    matmul: str | None = None


@dataclass(frozen=True)
class Compile:
    """Arguments of ``torch.compile``; ``regional`` compiles each repeated block instead of the model."""

    mode: str | None = None
    dynamic: bool | None = None
    regional: bool = False
    fullgraph: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``torch.compile`` that it sets, where torch's own choice is another."""
        found = {"mode": self.mode, "dynamic": self.dynamic, "fullgraph": self.fullgraph or None}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def replays_graphs(self) -> bool:
        """Whether this mode records CUDA graphs and replays them."""
        return self.mode in ("reduce-overhead", "max-autotune")


@dataclass(frozen=True)
class Batch:
    """The micro-batch (``None``: the user's) and what changes with it.

    The effective batch is ``size * accumulation`` samples. ``learning_rate_factor`` multiplies the
    learning rate of every parameter group; ``warmup_steps`` are optimizer steps of linear warm-up.
    """

    size: int | None = None
    accumulation: int | None = None
    learning_rate_factor: float = 1.0
    warmup_steps: int = 0


@dataclass(frozen=True)
class Cadence:
    """Optimizer steps between evaluations and between checkpoints (``None``: the user's)."""

    evaluate_every: int | None = None
    checkpoint_every: int | None = None


@dataclass(frozen=True)
class FullySharded:
    """Arguments of ``fully_shard``. ``dtype``: of gathered parameters (None: as they are); ``reshard``: whether they
    are let go of after the forward pass."""

    dtype: str | None = None
    reshard: bool = True


_SMALLEST_BUCKET = 1e-3
"""Megabytes."""


@dataclass(frozen=True)
class Distributed:
    """How a training is spread over processes of one machine (1: it is not). Batches are those of all of them.

    ``find_unused``: looks in each backward for parameters without a gradient. ``static_graph``: it never changes.
    ``bucket_view``: gradients lie in the buckets that are sent. ``bucket_megabytes``: of a bucket (None: torch's).
    ``compression``: gradients travel as ``bfloat16`` (None: as they are). ``quiet_accumulation``: of a step's
    micro-batches only the last one's gradients travel. ``sharded_optimizer``: each process updates its share of the
    parameters (ZeRO). ``fully_sharded``: and holds that share alone (FSDP2). ``own_cores``: each process keeps to cores
    of its own.
    """

    processes: int = 1
    find_unused: bool = False
    static_graph: bool = False
    bucket_view: bool = False
    bucket_megabytes: float | None = None
    compression: str | None = None
    quiet_accumulation: bool = False
    sharded_optimizer: bool = False
    fully_sharded: FullySharded | None = None
    own_cores: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``DistributedDataParallel`` that it sets, where torch's own choice is another."""
        found: dict[str, Any] = {}
        if self.bucket_megabytes is not None:
            found["bucket_cap_mb"] = max(self.bucket_megabytes, _SMALLEST_BUCKET)
        if self.bucket_view:
            found["gradient_as_bucket_view"] = True
        if self.static_graph:
            found |= {"static_graph": True, "find_unused_parameters": False}
        return found


@dataclass(frozen=True)
class Setup:
    """How a workload is trained. Frozen; every ``with_`` method returns a new one."""

    loader: Mapping[str, Any] = field(default_factory=_frozen)
    transfer: Transfer = Transfer()
    precision: Precision = Precision()
    compile: Compile | None = None
    batch: Batch = Batch()
    cadence: Cadence = Cadence()
    flags: Mapping[str, Any] = field(default_factory=_frozen)
    dataset: tuple[Transform, ...] = ()
    model: tuple[Transform, ...] = ()
    loss: tuple[Transform, ...] = ()
    optimizer: tuple[Transform, ...] = ()
    step: tuple[Transform, ...] = ()
    evaluation: Mapping[str, Any] = field(default_factory=_frozen)
    scheduler: tuple[Transform, ...] = ()
    collate: tuple[Transform, ...] = ()
    sampler: tuple[Callable[..., Any], ...] = ()
    distributed: Distributed = Distributed()

    def with_loader(self, **options: Any) -> Setup:
        """Sets options of the DataLoader (``num_workers``, ``pin_memory``, ``prefetch_factor`` ...).

        A ``worker_init_fn`` is called after the user's own.
        """
        return replace(self, loader=_frozen({**self.loader, **options}))

    def with_evaluation(self, **options: Any) -> Setup:
        """Sets options of the validation DataLoader alone; those of ``with_loader`` hold for it where nothing is said.

        ``batch_size``, ``num_workers``, ``prefetch_factor``, ``persistent_workers``, ``pin_memory``,
        ``multiprocessing_context``; ``dataset``: a :class:`Wrap` around the validation's dataset.
        """
        return replace(self, evaluation=_frozen({**self.evaluation, **options}))

    def with_transfer(self, *, non_blocking: bool | None = None, prefetch: int | None = None) -> Setup:
        """Sets how batches reach the device; what is None stays as it is."""
        if prefetch is not None and prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more batches, got {prefetch}")
        return replace(self, transfer=_updated(self.transfer, non_blocking=non_blocking, prefetch=prefetch))

    def with_precision(
        self, *, dtype: str | None = None, loss_scaling: bool | None = None, matmul: str | None = None
    ) -> Setup:
        """Sets autocast to ``bfloat16`` or ``float16``, the gradient scaler, and matmul precision."""
        if dtype is not None and dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        if matmul is not None and matmul not in _MATMUL:
            raise ValueError(f"matmul must be one of {', '.join(_MATMUL)}, got {matmul!r}")
        return replace(self, precision=_updated(self.precision, dtype=dtype, loss_scaling=loss_scaling, matmul=matmul))

    def with_compile(
        self,
        *,
        mode: str | None = None,
        dynamic: bool | None = None,
        regional: bool = False,
        fullgraph: bool = False,
    ) -> Setup:
        """Compiles the model with ``torch.compile``, after all model transforms."""
        return replace(self, compile=Compile(mode=mode, dynamic=dynamic, regional=regional, fullgraph=fullgraph))

    def with_batch(
        self,
        *,
        size: int | None = None,
        accumulation: int | None = None,
        learning_rate_factor: float | None = None,
        warmup_steps: int | None = None,
    ) -> Setup:
        """Sets the micro-batch, the accumulation, and what must change with them."""
        for name, value in (("size", size), ("accumulation", accumulation)):
            if value is not None and value < 1:
                raise ValueError(f"{name} must be 1 or more, got {value}")
        return replace(
            self,
            batch=_updated(
                self.batch,
                size=size,
                accumulation=accumulation,
                learning_rate_factor=learning_rate_factor,
                warmup_steps=warmup_steps,
            ),
        )

    def with_cadence(self, *, evaluate_every: int | None = None, checkpoint_every: int | None = None) -> Setup:
        """Sets the optimizer steps between evaluations and between checkpoints."""
        return replace(
            self, cadence=_updated(self.cadence, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every)
        )

    def with_distributed(self, **options: Any) -> Setup:
        """Spreads training over processes of this machine; see :class:`Distributed` for what may be set."""
        if options.get("processes", 1) < 1:
            raise ValueError(f"processes must be 1 or more, got {options['processes']}")
        if options.get("compression") not in (None, "bfloat16"):
            raise ValueError(f"compression must be bfloat16, got {options['compression']!r}")
        if isinstance(options.get("fully_sharded"), Mapping):
            options["fully_sharded"] = FullySharded(**options["fully_sharded"])
        return replace(self, distributed=replace(self.distributed, **options))

    def with_flags(self, **flags: Any) -> Setup:
        """Sets switches of the process.

        ``threads`` (intra-op), ``interop_threads``, ``cudnn_benchmark``, ``affinity`` (list of cores),
        ``multiprocessing_sharing_strategy``, and ``env`` (a dict of environment variables, set before
        torch is imported; merged over earlier ones).
        """
        merged = {**self.flags, **flags}
        if "env" in flags:
            merged["env"] = {**self.flags.get("env", {}), **flags["env"]}
        return replace(self, flags=_frozen(merged))

    def with_dataset(self, fn: Transform) -> Setup:
        """Adds ``fn(dataset) -> dataset``, called in the trial's process on the training dataset."""
        return replace(self, dataset=(*self.dataset, fn))

    def with_collate(self, fn: Transform) -> Setup:
        """Adds ``fn(collate) -> collate`` around what makes training's batches of samples, in the loader's workers."""
        return replace(self, collate=(*self.collate, fn))

    def with_sampler(self, fn: Callable[..., Any]) -> Setup:
        """Adds ``fn(sampler, dataset, batch_size) -> sampler`` around the order of training's samples.

        ``sampler`` gives indices of ``dataset``, and so does what comes out, as many of them.
        """
        return replace(self, sampler=(*self.sampler, fn))

    def with_model(self, fn: Transform) -> Setup:
        """Adds ``fn(model) -> model``, called on the device before the optimizer is made."""
        return replace(self, model=(*self.model, fn))

    def with_loss(self, fn: Transform) -> Setup:
        """Adds ``fn(loss) -> loss`` around ``loss(model, batch)``."""
        return replace(self, loss=(*self.loss, fn))

    def with_optimizer(self, fn: Transform) -> Setup:
        """Adds ``fn(factory) -> factory`` around ``factory(params) -> Optimizer``."""
        return replace(self, optimizer=(*self.optimizer, fn))

    def with_scheduler(self, fn: Transform) -> Setup:
        """Adds ``fn(factory) -> factory`` around ``factory(optimizer, total_steps) -> scheduler`` (None: constant).

        What comes out is stepped once per optimizer step.
        """
        return replace(self, scheduler=(*self.scheduler, fn))

    def with_step(self, fn: Transform) -> Setup:
        """Adds ``fn(step) -> step`` around one whole training step, ``step(batches) -> loss``.

        ``batches``: the list of micro-batches of one optimizer step, on the device.
        """
        return replace(self, step=(*self.step, fn))


def _updated(part: Any, **values: Any) -> Any:
    return replace(part, **{name: value for name, value in values.items() if value is not None})
