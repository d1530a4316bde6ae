"""Datasets around another one, whose samples are kept, or read a batch at a time: a patch holds them as they are.

Torch is imported here, and this module where a training runs; setups name what is in it by ``Wrap``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Subset, default_collate, default_convert

from autoopt_strategies.input.batches import Collated, Wrapper, as_is, split, transformed


class KeptSamples(Wrapper):
    """Samples of a dataset that are the same every time: read once, and kept in memory.

    Args:
        dataset: with a length, read by index.
        workers: processes that read it.
    """

    def __init__(self, dataset: Any, workers: int = 0) -> None:
        super().__init__(dataset)
        generator = torch.Generator()  # so that nothing is drawn from torch's own
        loader = DataLoader(dataset, batch_size=None, num_workers=workers, collate_fn=as_is, generator=generator)
        self.samples = [own(sample) for sample in loader]

    def __getitem__(self, index: Any) -> Any:
        return self.samples[index]


class KeptHeads(Wrapper):
    """Samples as they are before the random transforms, kept in memory; the other transforms are done each time.

    Args:
        dataset: its chain of transforms is ``dataset.transform.transforms``.
        first: how many of the transforms come before the random ones.
        workers: processes that read it.
    """

    def __init__(self, dataset: Any, first: int, workers: int = 0) -> None:
        super().__init__(dataset)
        head, self.tail = split(dataset, first)
        self.heads = KeptSamples(head, workers)

    def __getitem__(self, index: Any) -> Any:
        return transformed(self.heads[index], self.tail)


def own(sample: Any) -> Any:
    """The sample with tensors of its own, rather than in the memory that a worker shares."""
    if isinstance(sample, torch.Tensor):
        return sample.clone()
    if isinstance(sample, dict):
        return {key: own(value) for key, value in sample.items()}
    if type(sample) in (tuple, list):
        return type(sample)(own(value) for value in sample)
    return sample


class Rows(Wrapper):
    """Samples of a dataset that are the same every time, collated once: a batch is rows of tensors.

    Args:
        dataset: its samples collate into tensors.
        device: where the tensors are.
    """

    def __init__(self, dataset: Any, device: str = "cpu") -> None:
        super().__init__(dataset)
        batch = default_collate([dataset[index] for index in range(len(dataset))])
        self.rows = each_tensor(batch, lambda tensor: tensor.to(device))
        self.pinned = device.startswith("cuda")

    def __getitems__(self, indices: list[int]) -> Collated:
        index = torch.tensor(indices, pin_memory=self.pinned)
        return Collated(
            each_tensor(self.rows, lambda rows: rows.index_select(0, index.to(rows.device, non_blocking=True)))
        )


def each_tensor(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """A batch after a function of each of its tensors."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: each_tensor(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(each_tensor(value, function) for value in batch))
    if isinstance(batch, (list, tuple)):
        return [each_tensor(value, function) for value in batch]
    raise TypeError(f"samples collate into a batch with {type(batch).__name__}, not into tensors alone")


class IndexedBatches(Wrapper):
    """A dataset of rows: a batch is read by one index.

    Args:
        dataset: takes many indices at once.
        index: what it takes them as, ``tensor``, ``array`` or ``list``.
    """

    def __init__(self, dataset: Any, index: str) -> None:
        super().__init__(dataset)
        kinds: dict[str, Any] = {"tensor": torch.as_tensor, "array": np.asarray, "list": list}
        self.index = kinds[index]

    def __getitems__(self, indices: list[int]) -> Collated:
        dataset = self.dataset
        while isinstance(dataset, Subset):
            indices = [dataset.indices[index] for index in indices]
            dataset = dataset.dataset
        return Collated(default_convert(dataset[self.index(indices)]))  # type: ignore[no-untyped-call]


class ThreadedSamples(Wrapper):
    """Reads the samples of a batch in threads.

    Args:
        dataset: bears several threads at a time.
        threads: how many.
    """

    def __init__(self, dataset: Any, threads: int) -> None:
        super().__init__(dataset)
        self.threads = threads
        self.pool: Any = None

    def __getitems__(self, indices: list[int]) -> list[Any]:
        if self.pool is None:  # not before a worker has started
            self.pool = ThreadPoolExecutor(self.threads)
        return list(self.pool.map(self.dataset.__getitem__, indices))
