"""Samples of each batch of an epoch, known from the loader: looking into tensors costs short steps a per cent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset


@dataclass(frozen=True)
class Sizes:
    """``whole`` batches of ``size`` samples, then one of ``rest``."""

    size: int
    whole: int
    rest: int

    def of(self, batch: int) -> int:
        """Samples of a batch by its number in the epoch, from 0."""
        return self.size if batch < self.whole else self.rest

    def of_first(self, batches: int) -> int:
        """Samples of so many batches from the epoch's beginning."""
        whole = min(batches, self.whole)
        return whole * self.size + (batches - whole) * self.rest


def sizes_of(loader: DataLoader[Any]) -> Sizes | None:
    """The batch sizes of the coming epoch by the loader's batch sampler; None where only the batches tell."""
    sampler: Any = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or type(sampler) is not BatchSampler:
        return None
    try:
        whole, rest = divmod(len(sampler.sampler), sampler.batch_size)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
    return Sizes(sampler.batch_size, whole, rest)
