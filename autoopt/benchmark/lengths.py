"""How long a run is, in optimizer steps of the user's batch and of the setup's."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from torch.utils.data import DataLoader

from autoopt.benchmark.loader import Loader
from autoopt.setup import Setup
from autoopt.workload import Workload


@dataclass(frozen=True)
class Lengths:
    """Optimizer steps.

    Attributes:
        user_total: of the planned run with the user's own batch.
        user_per_epoch: the same of an epoch; None where not known.
        total, per_epoch: with the setup's batch.
        ratio: the user's steps that one of the setup's stands for.
        evaluate_every: the setup's steps between evaluations.
        accumulation: micro-batches of one step.
    """

    user_total: int
    user_per_epoch: int | None
    total: int
    per_epoch: int | None
    ratio: float
    evaluate_every: int
    accumulation: int


def lengths(workload: Workload, setup: Setup, loader: Loader) -> Lengths:
    """The lengths of a run of a workload under a setup; the same samples, whatever the batch."""
    accumulation = setup.batch.accumulation or workload.accumulation
    user_per_epoch = _per_epoch(user_batches(workload), workload.accumulation)
    per_epoch = _per_epoch(loader.length, accumulation)
    user_size = user_batch_size(workload)
    ratio = 1.0
    if setup.batch.size is not None or setup.batch.accumulation is not None:
        if user_per_epoch and per_epoch:
            ratio = user_per_epoch / per_epoch
        elif user_size:
            ratio = (loader.batch_size or user_size) * accumulation / (user_size * workload.accumulation)
    if workload.max_steps is not None:
        user_total = workload.max_steps
    else:
        user_total = max(1, ceil((workload.max_epochs or 1) * (user_per_epoch or 1)))
    every = setup.cadence.evaluate_every
    if every is None:
        own = workload.evaluate_every or user_per_epoch or max(1, user_total // 10)
        every = max(1, round(own / ratio))
    total = max(1, ceil(user_total / ratio - 1e-9))
    return Lengths(user_total, user_per_epoch, total, per_epoch, ratio, every, accumulation)


def user_batch_size(workload: Workload) -> int | None:
    """Samples in a micro-batch of the user's, where it can be told."""
    data = workload.train_data
    if not isinstance(data, DataLoader):
        return workload.batch_size
    found = data.batch_size or getattr(data.batch_sampler, "batch_size", None)
    if found is None and data.batch_sampler is not None:  # a sampler of the user's own, which does not tell
        return workload.batch_size
    return found


def user_batches(workload: Workload) -> int | None:
    """Micro-batches of the user's in an epoch; None where not known."""
    data = workload.train_data
    try:
        length = len(data)
    except (TypeError, NotImplementedError):
        return None
    return length if isinstance(data, DataLoader) else ceil(length / (workload.batch_size or 1))


def _per_epoch(batches: int | None, accumulation: int) -> int | None:
    return None if batches is None else max(1, ceil(batches / accumulation))
