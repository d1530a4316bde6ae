"""Samples and real micro-batches of a training, read without its dataset or loader noticing where that works."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from autoopt.benchmark.live import LiveTraining
from autoopt.records import JsonDict
from autoopt.simplify.isolation import ChildFailed, can_fork, in_child

_HALF = 0.5
"""A device with more of its memory taken is not asked for twice the batch."""
_SECONDS = 120.0
"""Reading a batch may take this long before it counts as hung."""


class Fetch:
    """Samples in the order of the loader's own sampler, one micro-batch after the other, for ever."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self._stream: Iterator[Any] = iter(())
        self.size = loader.batch_size or 1

    def indices(self) -> list[Any]:
        """The next micro-batch's indices; empty for an iterable dataset."""
        if self.iterable:
            return []
        while True:
            found = next(self._stream, None)
            if found is None:
                sampler = self.loader.batch_sampler if self.loader.batch_sampler is not None else self.loader.sampler
                self._stream = iter(sampler)
                found = next(self._stream)
            if self.loader.batch_sampler is None:
                return [found]
            if found:
                return list(found)

    def samples(self, indices: list[Any], count: int) -> Any:
        """The samples at these indices, or the next ``count`` of an iterable dataset.

        A list, but for a dataset that fetches many at once: what that gives is for its collate function alone.
        """
        if not self.iterable:
            many = getattr(self.dataset, "__getitems__", None)
            return many(indices) if many else [self.dataset[index] for index in indices]
        found = list(itertools.islice(self._stream, count))
        if len(found) < count:
            self._stream = iter(self.dataset)
            found += itertools.islice(self._stream, count - len(found))
        return found


def few(fetch: Fetch, most: int = 16) -> int:
    """Reads a few samples, few enough to be read under a tracer, and says how many."""
    indices = fetch.indices()[:most]
    got = fetch.samples(indices, min(most, fetch.size))
    return len(got) if fetch.iterable else len(indices)


def fresh_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader without its running iterator, and without pinning, which a forked child cannot do."""
    clone = copy.copy(loader)
    clone.__dict__["_iterator"] = None
    clone.__dict__["pin_memory"] = False
    return clone


def nbytes(batch: Any) -> int:
    """Bytes of all tensors in a batch, however it is nested."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def cached_batches(training: LiveTraining, notes: list[str]) -> list[Any]:
    """The micro-batches of one optimizer step, on the host.

    They are made in a forked child where that works, so that neither the dataset nor the loader notices.
    A script's are those that it holds.
    """
    if not training.takes_batches:
        return list(training.next())
    if can_fork() and training.device.kind == "cpu":
        try:
            packed = in_child(lambda: {"batches": _packed(_read(training))}, timeout=_SECONDS)["batches"]
            return _unpacked(packed)
        except (ChildFailed, AttributeError, pickle.PickleError) as error:
            notes.append(f"the cached batch was read in the training process: {error}")
    generator = getattr(training.loader.loader, "generator", None)
    saved = generator.get_state() if generator is not None else None
    try:
        return _read(training)
    finally:
        if generator is not None and saved is not None:
            generator.set_state(saved)


def _read(training: LiveTraining) -> list[Any]:
    loader = training.loader.loader
    fetch = Fetch(loader)
    if fetch.iterable or loader.batch_sampler is None:
        clone = fresh_loader(loader)
        clone.__dict__.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
        clone.__dict__["_DataLoader__multiprocessing_context"] = None
        return list(itertools.islice(iter(clone), training.lengths.accumulation))
    return [loader.collate_fn(fetch.samples(fetch.indices(), fetch.size)) for _ in range(training.lengths.accumulation)]


def doubled_batch(training: LiveTraining) -> Any | None:
    """A micro-batch of twice the samples, on the device.

    None where the dataset cannot be asked for any samples, or the device may have no room.
    """
    if not training.takes_batches:
        return None  # what a script makes of a batch is its own
    loader = training.loader.loader
    fetch = Fetch(loader)
    if fetch.iterable or loader.batch_sampler is None or _near_limit(training):
        return None

    def read() -> JsonDict:
        indices = fetch.indices() + fetch.indices()
        return {"batches": _packed([loader.collate_fn(fetch.samples(indices, 2 * fetch.size))])}

    return training.to_device(_unpacked(in_child(read, timeout=_SECONDS)["batches"])[0])


def _near_limit(training: LiveTraining) -> bool:
    """Whether twice the batch may not fit."""
    if training.device.kind != "cuda":
        return False
    total: int = torch.cuda.get_device_properties(training.device.torch).total_memory
    return torch.cuda.max_memory_reserved(training.device.torch) > _HALF * total


def _packed(batches: list[Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(batches, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> list[Any]:
    """Batches of a child that this process has just forked itself: of any class, and from nobody else."""
    return list(torch.load(io.BytesIO(packed), weights_only=False))
