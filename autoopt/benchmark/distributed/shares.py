"""The share of each process in every batch: together they read what one process would have read, in the same order.

A batch of 64 is 16 samples for each of four processes: the first 16 for the first, and so on. Nothing is padded and
nothing is read twice, as ``DistributedSampler`` does at an epoch's end: a last batch of 30 is shared as 8, 8, 7 and 7,
and each gradient is weighted by its samples, so that the sum is that of the whole batch. Where a batch has fewer
samples than there are processes, those without one get its first sample with weight 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from autoopt.benchmark.contents import samples_of, tensors
from autoopt.benchmark.distributed.group import Group
from autoopt.benchmark.loader import Loader, Shielded
from autoopt.benchmark.transfer import mapped
from autoopt.errors import WorkloadError


def bounds(samples: int, rank: int, size: int) -> tuple[int, int]:
    """First and last (exclusive) sample of a process's share; the first processes have one more."""
    least, more = divmod(samples, size)
    begin = rank * least + min(rank, more)
    return begin, begin + least + (rank < more)


class SharedBatches:
    """A batch sampler of which each process reads its share.

    Args:
        batches: the batch sampler of one process; it gives the same in every process.

    Attributes:
        weights: of the gradient of each batch of the epoch that was read so far, so that their mean over the processes
            is the gradient of the whole batch; and samples of the whole batch.
    """

    def __init__(self, batches: Any, group: Group) -> None:
        self.batches, self._group = batches, group
        self.weights: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self.batches)

    def __getattr__(self, name: str) -> Any:
        if name == "batches":
            raise AttributeError(name)
        return getattr(self.batches, name)

    def __iter__(self) -> Iterator[Any]:
        self.weights = weights = []
        group = self._group
        for batch in self.batches:
            indices = list(batch)
            begin, end = bounds(len(indices), group.rank, group.size)
            weights.append((group.size * (end - begin) / max(len(indices), 1), len(indices)))
            yield indices[begin:end] or indices[:1]


def share_out(loader: Loader, group: Group) -> SharedBatches | None:
    """Lets a loader read this process's share; None where it does so by itself, or there is one process.

    Raises:
        WorkloadError: its batches cannot be shared out.
    """
    if group.size == 1:
        return None
    inner: DataLoader[Any] = loader.loader
    sampler = getattr(inner.batch_sampler, "sampler", None)
    sampler = inner.sampler if sampler is None else sampler
    if isinstance(sampler.sampler if isinstance(sampler, Shielded) else sampler, DistributedSampler):
        return None
    if isinstance(inner.dataset, IterableDataset):
        raise WorkloadError(
            f"{type(inner.dataset).__name__} is an IterableDataset: its samples cannot be shared out between processes",
            hint="give a map-style Dataset, or share it out yourself by RANK and WORLD_SIZE and train by torchrun",
        )
    if inner.batch_sampler is None:
        raise WorkloadError(
            "the loader does not batch (batch_size=None): one of its batches cannot be shared out between processes",
            hint="give batch_size and a Dataset of samples",
        )
    shared = SharedBatches(inner.batch_sampler, group)
    inner.__dict__["batch_sampler"] = shared  # torch refuses to set it on a live loader
    return shared


def part_of(batch: Any, group: Group) -> tuple[Any, float]:
    """This process's share of a whole batch, and the weight of its gradient."""
    count = samples_of(batch)
    if group.size == 1 or not count:
        return batch, 1.0
    begin, end = bounds(count, group.rank, group.size)
    weight = group.size * (end - begin) / count
    begin, end = (begin, end) if end > begin else (0, 1)
    share = mapped(batch, lambda tensor: tensor[begin:end] if tensor.dim() and tensor.shape[0] == count else tensor)
    return share, weight


def whole_of(batch: Any, weight: float, group: Group) -> Any:
    """The whole batch, from the shares of all processes, which all call this; the share itself where shapes differ."""
    if group.size == 1:
        return batch
    count = samples_of(batch)
    own = [tensor.cpu() for _, tensor in tensors(batch)]
    shares: list[Sequence[torch.Tensor]] = [
        found for found in group.gather(own if weight else None) if found is not None
    ]
    joined: list[torch.Tensor | None] = []
    for place, tensor in enumerate(own):
        parts = [share[place] for share in shares]
        fits = tensor.dim() > 0 and tensor.shape[0] == count and len({part.shape[1:] for part in parts}) == 1
        joined.append(torch.cat(parts).to(tensor.device) if fits else None)
    following = iter(joined)

    def put(tensor: torch.Tensor) -> torch.Tensor:
        found = next(following)
        return tensor if found is None else found.to(tensor.device)

    return mapped(batch, put)
