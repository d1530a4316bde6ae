"""Batches that need no collating any more, and datasets that wrap another: for strategies of the input side."""

from __future__ import annotations

import functools
import os
import weakref
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from numbers import Number
from typing import Any


class Collated:
    """A batch that a dataset gives whole."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch


def collate_whole(samples: Any) -> Any:
    """Batches that the dataset gives whole as they are, samples collated by torch."""
    from torch.utils.data import default_collate

    return samples.batch if isinstance(samples, Collated) else default_collate(samples)


class Wrapper:
    """A dataset around another one, whose attributes stay within reach."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # while it is unpickled, there is none yet
            raise AttributeError(name)
        return getattr(self.dataset, name)


def kept_by_index(prepare: Any) -> Any:
    """A method of a dataset that makes the same of an index every time: made once, then taken from memory."""

    @functools.wraps(prepare)
    def read(self: Any, index: Any) -> Any:
        kept = self.__dict__.setdefault("_kept", {})
        key = index.item() if hasattr(index, "item") else index
        if key not in kept:
            kept[key] = prepare(self, index)
        return kept[key]

    return read


def kept_by_arguments(function: Any) -> Any:
    """A function that makes the same of the same arguments every time: made once, then taken from memory.

    What may change counts as the object that it is, and is held, so that no other is taken for it.
    """
    kept: dict[Any, Any] = {}

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        key = key_of((*arguments, *sorted(named.items())))
        if key not in kept:
            kept[key] = function(*arguments, **named), (arguments, named)
        return kept[key][0]

    return call


SIMPLE = (str, bytes, Number, type(None), os.PathLike)
"""Types of arguments that say by their value what a function makes of them."""


def key_of(value: Any) -> Any:
    """A value that cannot change, with its type; the identity of what can."""
    if type(value) is tuple:
        return tuple(map(key_of, value))
    return (type(value), value) if isinstance(value, SIMPLE) else id(value)


def read_many(dataset: Any, indices: list[int]) -> Any:
    """Samples as a ``DataLoader`` reads them: at once where the dataset can."""
    many = getattr(dataset, "__getitems__", None)
    return many(indices) if many is not None else [dataset[index] for index in indices]


def read_by_threads(dataset: Any, indices: list[int], threads: int) -> list[Any]:
    """The samples of a batch: what is not kept of each yet is made at the same time, the rest in their order."""
    new = [index for index in indices if index not in dataset.__dict__.get("_kept", ())]
    if new:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(dataset.unaugmented, new))
    return [dataset[index] for index in indices]


def as_is(item: Any) -> Any:
    return item


def as_tensors(dataset: Any) -> Any:
    """A dataset of Hugging Face's in the torch format; any other as it is."""
    hugging_face = type(dataset).__module__.split(".")[0] == "datasets" and hasattr(dataset, "with_format")
    return dataset.with_format("torch") if hugging_face else dataset


def transformed(sample: Any, transforms: tuple[Any, ...]) -> Any:
    """A sample after transforms of its first part, which may work in place."""
    first, *others = sample
    duplicate = getattr(first, "clone", None) or getattr(first, "copy", None)
    first = duplicate() if duplicate is not None else first
    for transform in transforms:
        first = transform(first)
    return (first, *others)


def split(dataset: Any, first: int) -> tuple[Any, tuple[Any, ...]]:
    """The dataset with only the first of its transforms, and the other transforms."""
    from torch.utils.data import Subset

    head = copy(dataset)
    if isinstance(dataset, Subset):
        head.dataset, others = split(dataset.dataset, first)
        return head, others
    head.transform = copy(dataset.transform)
    others = tuple(head.transform.transforms[first:])
    head.transform.transforms = list(head.transform.transforms[:first]) or [as_is]
    if hasattr(getattr(head, "transforms", None), "transform"):  # torchvision calls the chain by this name
        head.transforms = copy(head.transforms)
        head.transforms.transform = head.transform
    return head, others


def is_subset(dataset: Any) -> bool:
    """Whether a dataset picks samples of another one, as ``random_split`` makes it."""
    from torch.utils.data import Subset

    return type(dataset) is Subset


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
        return type(batch)(*made) if hasattr(batch, "_fields") else type(batch)(made)
    return values.pop(0)


def equal(one: Any, other: Any, within: tuple[int, ...] = ()) -> bool:
    """Whether two samples or batches are the same to the bit: structure, types, dtypes, values.

    An object is what it keeps in its attributes, as a graph of PyTorch Geometric's or a dataclass does.

    Args:
        within: what holds ``one``, by ``id``: an object that refers back to its holder is not followed for ever.
    """
    import numpy as np
    import torch

    if id(one) in within:
        return True
    within = (*within, id(one))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key], within) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(a, b, within) for a, b in zip(one, other, strict=True))
    if hasattr(one, "tobytes") and hasattr(one, "mode"):  # a PIL image
        return bool(one.mode == other.mode and one.size == other.size and one.tobytes() == other.tobytes())
    if isinstance(one, weakref.ReferenceType):  # as of a part to its whole
        return True
    attributes = getattr(one, "__dict__", None)
    if attributes and not isinstance(one, type):
        return equal(attributes, other.__dict__, within)
    try:
        return bool(one == other)
    except Exception:
        return False


def dataset_of(workload: Any) -> Any:
    """The training dataset of its loader."""
    from torch.utils.data import DataLoader

    data = workload.train_data
    return data.dataset if isinstance(data, DataLoader) else data
