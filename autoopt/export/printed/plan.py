"""Names that printed code may depend on. None stands in an exported script: conditions on them are decided before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Change = Callable[[Any], Any]


@dataclass
class PrintedPlan:
    """A plan over a workload, as printed code sees it; the defaults are a workload as it is.

    Attributes:
        build: the user's.
        adapted: whether it gives a Trainer's objects.
        sets_switches: whether any of the following is set.
        affinity, threads, interop_threads, cudnn_benchmark, attention_off, keeps_freed_memory, sharing_strategy,
            matmul: switches of the process.
        own_loader: whether the user brings a DataLoader.
        odd_loader: one with a sampler or a class of the user's own.
        map_style, known_length: of the training data; same_samples: an index gives the same sample whatever is drawn.
        loader_options, valid_options: of DataLoaders.
        starts_workers: whether the plan has a ``worker_init_fn``.
        batch_size, accumulation, learning_rate_factor, warmup_steps: None where they are the user's.
        moves_batch: whether steps hold other samples than the user's.
        dataset, collate, sampler, loss, model, optimizer, scheduler, step: changes of each.
        non_blocking, prefetch: how batches reach the device; batches that are copied ahead.
        criterion: whether the loss is one, for (input, label) batches.
        dtype: of autocast.
        scales_loss, clips: what a step needs.
        compiles, regional, compile_options, marks_steps: how the model is compiled; whether CUDA graphs are replayed.
        changes_model: whether there are changes of the model, or it is compiled.
        rebuilds: whether the optimizer is made anew over another model.
        has_scheduler, whole_schedule: whether there is one; whether it needs more than ``scheduler.step()``.
        has_evaluate: whether the user evaluates.
        scales_rate: whether the learning rate is multiplied.
        changes_training_loader, changes_validation_loader, configures, configures_optimizer: what a Trainer's callback
            has to do: wrap a loader, ``configure_optimizers``, and what that gives.
        evaluate_every, checkpoint_every: optimizer steps; None where they are the user's.
    """

    build: Callable[[], Any] = dict
    adapted: bool = False
    sets_switches: bool = True
    affinity: set[int] | None = None
    threads: int | None = None
    interop_threads: int | None = None
    cudnn_benchmark: bool | None = None
    attention_off: tuple[str, ...] | None = None
    keeps_freed_memory: bool | None = None
    sharing_strategy: str | None = None
    matmul: str | None = None
    own_loader: bool = False
    odd_loader: bool = False
    map_style: bool = True
    same_samples: bool = False
    known_length: bool = True
    loader_options: Mapping[str, Any] = field(default_factory=dict)
    valid_options: Mapping[str, Any] = field(default_factory=dict)
    starts_workers: bool = False
    batch_size: int | None = None
    accumulation: int | None = None
    learning_rate_factor: float = 1.0
    warmup_steps: int = 0
    moves_batch: bool = False
    dataset: Sequence[Change] = ()
    collate: Sequence[Change] = ()
    sampler: Sequence[Callable[..., Any]] = ()
    loss: Sequence[Change] = ()
    model: Sequence[Change] = ()
    optimizer: Sequence[Change] = ()
    scheduler: Sequence[Change] = ()
    step: Sequence[Change] = ()
    non_blocking: bool = False
    prefetch: int = 0
    criterion: bool = False
    dtype: Any = None
    scales_loss: bool = False
    clips: bool = True
    compiles: bool = False
    regional: bool = False
    compile_options: Mapping[str, Any] = field(default_factory=dict)
    marks_steps: bool = False
    changes_model: bool = False
    rebuilds: bool = False
    has_scheduler: bool = True
    whole_schedule: bool = False
    has_evaluate: bool = True
    scales_rate: bool = False
    changes_training_loader: bool = False
    changes_validation_loader: bool = False
    configures: bool = False
    configures_optimizer: bool = False
    evaluate_every: int | None = None
    checkpoint_every: int | None = None


plan = PrintedPlan()
