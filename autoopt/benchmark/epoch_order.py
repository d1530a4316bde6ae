"""The beginning of an epoch, as samplers and datasets are told of it, and the order of samples that follows."""

from __future__ import annotations

from itertools import islice
from typing import Any

from torch.utils.data import BatchSampler, IterableDataset

from autoopt.benchmark.loader import Loader
from autoopt.records.messages import EpochOrder


def tell_epoch(loader: Loader, epoch: int) -> None:
    """Calls ``set_epoch`` of whatever has one; before the loader is iterated."""
    inner = loader.loader
    for shield in loader.shields:
        shield.epoch = epoch
    told: list[Any] = []
    for part in (inner.sampler, inner.batch_sampler, inner.dataset):
        part = getattr(part, "sampler", part) if type(part).__name__ == "Shielded" else part
        for holder in (part, getattr(part, "sampler", None)):
            hook = getattr(holder, "set_epoch", None)
            if callable(hook) and not any(holder is known for known in told):
                told.append(holder)
                hook(epoch)


def epoch_order(loader: Loader, most: int) -> EpochOrder | None:
    """The order of the first two epochs by the sampler alone: no sample is read, and the loader is of no use then.

    Args:
        most: samples of an epoch; None is returned for more, and where the order is not that of single samples.
    """
    inner = loader.loader
    batches: Any = inner.batch_sampler
    if isinstance(inner.dataset, IterableDataset) or type(batches) is not BatchSampler:
        return None
    epochs = []
    for epoch in range(2):
        loader.generators.start_epoch(epoch)
        tell_epoch(loader, epoch)
        try:
            length = len(inner.dataset)  # type: ignore[arg-type]
            epochs.append(list(islice(iter(batches.sampler), most + 1)))
        except Exception:  # a sampler of the user's that tells no length, or may be iterated once
            return None
    first, second = epochs
    if len(first) > most or not all(isinstance(index, int) for index in first):
        return None
    kept = len(first) - len(first) % batches.batch_size if batches.drop_last else len(first)
    return EpochOrder(length=length, samples=kept, distinct=len(set(first)), repeats=first == second)
