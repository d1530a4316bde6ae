"""Batches that a resumed training passes over: by their order alone where samples draw nothing, else by reading."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader


class Behind:
    """A sampler that leaves out the first batches of the first epoch that it is asked for."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler, self.count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        count, self.count = self.count, 0
        yield from islice(self.sampler, count, None)

    def __len__(self) -> int:
        return len(self.sampler)


def behind(loader: DataLoader[Any], count: int) -> Iterator[Any]:
    """The batches of an epoch behind the first ``count``, of which no sample is read.

    Args:
        loader: of a dataset that is read by index. One whose samples draw random numbers draws others from here on.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    whole = getattr(loader, name)
    loader.__dict__[name] = Behind(whole, count)  # torch refuses to set it on a loader
    try:
        return iter(loader)
    finally:
        loader.__dict__[name] = whole
