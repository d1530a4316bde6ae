"""Batches that need no collating any more, and datasets that wrap another: for strategies of the input side."""

from __future__ import annotations

from typing import Any


class Collated:
    """A batch that came out of the dataset whole; ``collate`` only unwraps it."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def collate(samples: Any) -> Any:
    """``collate_fn`` for a dataset that may give whole batches: those as they are, others collated by torch."""
    if isinstance(samples, Collated):
        return samples.batch
    from torch.utils.data import default_collate

    return default_collate(samples)


class Wrapper:
    """A map-style dataset around another one, whose own attributes and methods stay within reach."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


def leaves(batch: Any) -> list[Any]:
    """The tensors of a collated batch, in order."""
    if isinstance(batch, dict):
        return [leaf for value in batch.values() for leaf in leaves(value)]
    if isinstance(batch, (list, tuple)):
        return [leaf for value in batch for leaf in leaves(value)]
    return [batch]


def like(batch: Any, values: list[Any]) -> Any:
    """The structure of a collated batch around other leaves, which are taken from the list's front."""
    if isinstance(batch, dict):
        return {key: like(value, values) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        made = [like(value, values) for value in batch]
        if hasattr(batch, "_fields"):
            return type(batch)(*made)
        return tuple(made) if isinstance(batch, tuple) else made
    return values.pop(0)


def equal(one: Any, other: Any) -> bool:
    """Whether two samples or batches are the same to the bit: structure, types, dtypes, values."""
    import numpy as np
    import torch

    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and bool(torch.equal(one.nan_to_num(), other.nan_to_num()))
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(a, b) for a, b in zip(one, other, strict=True))
    if hasattr(one, "tobytes") and hasattr(one, "mode"):  # a PIL image
        return bool(one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes())
    try:
        return bool(one == other)
    except Exception:
        return False


def dataset_of(workload: Any) -> Any:
    """The training dataset, taken out of its loader."""
    from torch.utils.data import DataLoader

    data = workload.train_data
    return data.dataset if isinstance(data, DataLoader) else data
