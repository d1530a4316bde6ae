"""A few samples of the training data, looked at beside the training: its order and its numbers are untouched."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import default_collate, default_convert

from autoopt.benchmark.contents import array_of, bytes_of, leaves, shape_of, tensors
from autoopt.benchmark.fingerprint import digest, unhashed
from autoopt.benchmark.lengths import user_batch_size
from autoopt.benchmark.seeding import kept_random_state, seed_everything
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
        self.batch: Any = None
        if self._items:
            with suppress(Exception):  # whatever a collate function insists on, training shows it
                self.batch = self._collated(self._items if self._batches else self._items[0])

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
        except Exception:
            return []  # a dataset whose keys come from its own sampler, and what it raises at others

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
        """Whether the same index gives the same sample under other random numbers; None where that cannot be told."""
        if not self._items or isinstance(self._dataset, IterableDataset) or unhashed(self._items[0]):
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
        return [shape_of(t) for _, t in tensors(one)] == [shape_of(t) for _, t in tensors(other)]


def equal(one: Any, other: Any) -> bool:
    """Whether two samples are the same, by the value of all that they hold."""
    left, right = list(leaves(one)), list(leaves(other))
    same = [path for path, _ in left] == [path for path, _ in right]
    return same and all(_same(mine, theirs) for (_, mine), (_, theirs) in zip(left, right, strict=True))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        plain = one.layout == other.layout == torch.strided and not one.is_nested and not other.is_nested
        return bool(torch.equal(one, other)) if plain else digest(one) == digest(other)
    arrays = array_of(one), array_of(other)
    if arrays[0] is not None and arrays[1] is not None:
        return np.array_equal(*arrays)
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):
        return False


def size_of(sample: Any) -> int:
    """Bytes of a sample's tensors, arrays, and byte strings; whatever else it holds counts as 8."""
    total = 0
    for _, leaf in leaves(sample):
        array = array_of(leaf)
        if isinstance(leaf, torch.Tensor):
            total += bytes_of(leaf)
        elif isinstance(leaf, (bytes, bytearray, str)):
            total += len(leaf)
        else:
            total += 8 if array is None else int(array.nbytes)
    return total
