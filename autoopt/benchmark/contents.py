"""What a batch holds, whatever it is: containers, dataclasses and objects are walked through to their leaves."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from pathlib import PurePath
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

Leaf = tuple[str, Any]
"""A leaf with its path, such as ``[0]``, ``['image']`` or ``.nodes``."""

PLAIN = (
    str, bytes, bytearray, int, float, complex, type(None), enum.Enum, np.generic,
    datetime.date, datetime.time, datetime.timedelta, PurePath, torch.Size, torch.dtype, torch.device,
)  # fmt: skip
"""Leaves next to tensors and arrays whose value is their text."""

_NO_DATA = (type, ModuleType, weakref.ref, nn.Module, torch.Generator)
"""Things that an object holds to work with; they are no part of what it holds of the data."""
MASKS = ("['attention_mask']", "['padding_mask']", "['mask']")
LEAST_WIDTH = 8
"""Rows of fewer ids than this are no sequences."""


def leaves(batch: Any, path: str = "", around: frozenset[int] = frozenset()) -> Iterator[Leaf]:
    """Every leaf of a batch in a fixed order: tensors, arrays, plain values, and objects that tell nothing of theirs.

    What refers to itself is walked through once.

    Args:
        path, around: of a part of a batch: where it lies, and the ids of what holds it.
    """
    parts = None if isinstance(batch, torch.Tensor) else parts_of(batch)
    if parts is None:
        if isinstance(batch, torch.Tensor) or not (isinstance(batch, _NO_DATA) or callable(batch)):
            yield path, batch
    elif id(batch) not in around:
        for name, part in parts:
            yield from leaves(part, path + name, around | {id(batch)})


def parts_of(value: Any) -> list[Leaf] | None:
    """The parts of a container or an object, each with its part of the path; None of a leaf."""
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, (torch.Tensor, np.ndarray, *PLAIN, *_NO_DATA)):
        return None
    if dataclasses.is_dataclass(value):
        return [(f".{field.name}", getattr(value, field.name, None)) for field in dataclasses.fields(value)]
    if isinstance(value, Set):
        return [("{}", item) for item in sorted(value, key=repr)]  # in an order that every process has
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return None  # a picture, a column of a table
    declared = (kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__)
    slots = (name for names in declared for name in ((names,) if isinstance(names, str) else names))
    held = {name: getattr(value, name) for name in slots if name[:2] != "__" and hasattr(value, name)}
    held |= getattr(value, "__dict__", {})
    return [(f".{name}", item) for name, item in held.items()] if held else None


def tensors(batch: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor in a batch with its path."""
    if isinstance(batch, torch.Tensor):
        return [("", batch)]
    return [(path, leaf) for path, leaf in leaves(batch) if isinstance(leaf, torch.Tensor)]


def tensor_leaves(values: Any) -> list[torch.Tensor]:
    """The same of containers alone, much faster: what an operator takes and gives, a state, a plain batch."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its sizes; of a nested one, whose rows differ, how many rows there are."""
    return (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)


def bytes_of(tensor: torch.Tensor) -> int:
    if tensor.is_nested:
        return sum(part.numel() * part.element_size() for part in tensor.unbind())
    stored = tensor._nnz() if tensor.layout != torch.strided else tensor.numel()
    return stored * tensor.element_size()


def array_of(leaf: Any) -> Any:
    """A leaf as an array of numbers, where it is one or gives one without computing; else None."""
    if isinstance(leaf, PLAIN) or not (hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__")):
        return None
    try:
        found = np.asarray(leaf)
    except Exception:  # whatever an object of the user's raises, it shows nothing
        return None
    return None if found.dtype.hasobject else found


def users_dataset(dataset: Any) -> Any:
    """The dataset within torch's own around it, such as a Subset of ``random_split``."""
    while type(dataset).__module__.startswith("torch.") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    return dataset


def samples_of(batch: Any) -> int | None:
    """Samples in a batch, as it reports them itself, or by its length or first dimension; None where that is not known.

    A graph's batch reports its graphs, a packed one its sequences. Of several parts the first that can be counted does.
    """
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if type(first) is torch.Tensor and first.dim():  # nearly always; a walk takes short steps a thousandth
        return first.size(0)
    if isinstance(batch, torch.Tensor):
        return batch.size(0) if batch.dim() else None
    if isinstance(batch, PackedSequence):
        return int(batch.batch_sizes[0])
    if isinstance(batch, (list, tuple)):
        for item in batch:
            if not isinstance(item, (str, bytes)) and (found := samples_of(item)) is not None:
                return found
        # of a list of things that cannot be counted, and of texts, how many there are
        texts = isinstance(batch, list) or all(isinstance(item, (str, bytes)) for item in batch)
        return len(batch) if batch and texts else None
    if isinstance(batch, PLAIN):
        return None
    if isinstance(batch, np.ndarray):
        return len(batch) if batch.ndim else None
    for name in ("num_graphs", "batch_size"):  # an object's own count: PyTorch Geometric; DGL, samplers of neighbours
        with suppress(Exception):  # a property that fails is none
            value = getattr(batch, name, None)
            if isinstance(value, torch.Size) and value:  # tensordict
                return value[0]
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    if not isinstance(batch, Mapping) and hasattr(type(batch), "__len__") and not hasattr(type(batch), "keys"):
        try:
            return len(batch) or None
        except Exception:  # as of a property
            return None
    return next((found for _, part in parts_of(batch) or () if (found := samples_of(part)) is not None), None)


def added(samples: int | None, more: int | None) -> int | None:
    return None if samples is None or more is None else samples + more


def unreached(batch: Any, method: str) -> str:
    """The type of an object whose tensors are not pinned or moved: it has no such method. "" where all are reached.

    Args:
        method: ``pin_memory``, for which ``torch.utils.data`` looks into containers and asks objects; ``to``, for which
            ``transfer.mapped`` looks into dataclasses as well.
    """
    if isinstance(batch, torch.Tensor) or callable(getattr(batch, method, None)):
        return ""
    if isinstance(batch, (Mapping, list, tuple)) or (method == "to" and dataclasses.is_dataclass(batch)):
        return next((found for _, part in parts_of(batch) or () if (found := unreached(part, method))), "")
    return type(batch).__name__ if tensors(batch) else ""


def sizes_of(loader: DataLoader[Any]) -> Callable[[int], int] | None:
    """Samples of a batch by its number in the coming epoch, from 0, by the loader's batch sampler; None where only the
    batches tell."""
    sampler: Any = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset) or type(sampler) is not BatchSampler:
        return None
    try:
        whole, rest = divmod(len(sampler.sampler), sampler.batch_size)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None
    return lambda batch: sampler.batch_size if batch < whole else rest


def padding_share(batches: Iterable[Any]) -> float | None:
    """Share of padding in the sequences of some batches; None where they hold neither masks nor rows of ids.

    An attention mask reports it; without one, what rows of ids end with: runs of the number that most rows end with.
    """
    padded = whole = 0
    for batch in batches:
        found = list(tensors(batch))
        wide = [(path, tensor) for path, tensor in found if tensor.ndim == 2]
        rows = [tensor == 0 for path, tensor in wide if path.endswith(MASKS)][:1]
        if not rows:
            ids = [tensor for _, tensor in wide if tensor.dtype in (torch.int64, torch.int32)]
            rows = [ending(tensor) for tensor in ids if tensor.shape[1] >= LEAST_WIDTH][:1]
        for each in rows:
            padded += int(each.sum())
            whole += each.numel()
    return padded / whole if whole else None


def ending(ids: torch.Tensor) -> torch.Tensor:
    """Which places of rows belong to a run of two and more at their end of what most rows end with."""
    same = ids == ids[:, -1].mode().values
    run = same.flip(1).cumprod(1).flip(1).bool()
    return run & (run.sum(1, keepdim=True) > 1)
