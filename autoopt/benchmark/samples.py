"""A few samples of the training data, looked at beside the training: its order and its numbers are untouched."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import default_collate, default_convert

from autoopt.benchmark.lengths import user_batch_size
from autoopt.benchmark.seeding import kept_random_state, seed_everything
from autoopt.benchmark.transfer import tensors
from autoopt.workload import Workload

_HANDFUL = 4
_PATIENCE = 2.0


class Samples:
    """Reads a batch of the user's size from the front of the dataset.

    Attributes:
        batch: collated as the user's loader does; None where it cannot be read beside the training.
    """

    def __init__(self, workload: Workload) -> None:
        data: Any = workload.train_data
        self._loader = data if isinstance(data, DataLoader) else None
        self._dataset: Any = data.dataset if isinstance(data, DataLoader) else data
        self._size = user_batch_size(workload)
        self._batches = bool(self._size) or (self._loader is not None and self._loader.batch_sampler is not None)
        with kept_random_state():
            self._items = self._read()
        self.batch = self._collated(self._items if self._batches else self._items[0]) if self._items else None

    def _read(self) -> list[Any]:
        self._wanted = count = self._size or (_HANDFUL if self._batches else 1)
        if isinstance(self._dataset, IterableDataset):
            iterator: Any = iter(self._dataset)
            if iterator is self._dataset:
                return []  # it can be read once: what is taken here would be missing there
            return self._in_time(itertools.islice(self._dataset, count))
        try:
            self._wanted = count = min(count, len(self._dataset))
        except (TypeError, NotImplementedError):
            return []
        try:
            return self._in_time(self._dataset[index] for index in range(count))
        except (KeyError, TypeError):
            return []  # a dataset whose keys come from its own sampler

    def _in_time(self, items: Iterable[Any]) -> list[Any]:
        """The items, or as many as a slow dataset gives in a few seconds, a handful at least."""
        began, found = perf_counter(), []
        for item in items:
            found.append(item)
            if len(found) >= _HANDFUL and perf_counter() - began > _PATIENCE:
                break
        return found

    @property
    def scale(self) -> float:
        """Samples in a batch of the user's over those read of a slow dataset."""
        return self._wanted / len(self._items) if self._batches and self._items else 1.0

    def _collated(self, items: Any) -> Any:
        if self._loader is not None and self._loader.collate_fn is not None:
            collate: Any = self._loader.collate_fn
        else:
            collate = default_collate if self._batches else default_convert
        with kept_random_state():
            return collate(items)

    def deterministic(self) -> bool | None:
        """Whether the same index gives the same sample under other random numbers."""
        if not self._items or isinstance(self._dataset, IterableDataset):
            return None
        with kept_random_state():
            for index in range(min(2, len(self._dataset))):  # the first alone may draw from a seed of its own
                seen = []
                for seed in (1, 2, 3):
                    seed_everything(seed)
                    seen.append(self._dataset[index])
                if not all(equal(seen[0], other) for other in seen[1:]):
                    return False
        return True

    def sample_bytes(self) -> int | None:
        """Bytes of the tensors and arrays of one sample, the largest of those read."""
        return max(size_of(item) for item in self._items) if self._items else None

    def static_shapes(self) -> bool | None:
        """Whether batches have one shape, apart from how many samples they hold; None where not known."""
        if len(self._items) < 4 or not self._batches:
            return None
        half = len(self._items) // 2
        try:
            one, other = self._collated(self._items[:half]), self._collated(self._items[half : 2 * half])
        except Exception:  # a collate function that insists on its own batch
            return None
        return [t.shape for _, t in tensors(one)] == [t.shape for _, t in tensors(other)]


def equal(one: Any, other: Any) -> bool:
    """Whether two samples are the same, tensors and arrays compared by value."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and bool(torch.equal(one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False


def size_of(sample: Any) -> int:
    """Bytes of a sample's tensors, arrays, and byte strings; a number counts as 8."""
    if isinstance(sample, torch.Tensor):
        return sample.numel() * sample.element_size()
    if isinstance(sample, np.ndarray):
        return int(sample.nbytes)
    if isinstance(sample, (bytes, bytearray, str)):
        return len(sample)
    if isinstance(sample, Mapping):
        return sum(size_of(value) for value in sample.values())
    if isinstance(sample, (list, tuple)):
        return sum(size_of(value) for value in sample)
    return 8
