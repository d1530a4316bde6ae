"""Sequences in samples and batches: how long they are, which columns of a batch are padding alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MASK = "attention_mask"
LEAST_WIDTH = 8
"""Rows of fewer ids than this are no sequences."""


def size_of(sample: Any) -> int:
    """How long a sample is: what its attention mask counts, else all numbers and characters that it holds.

    Of a row of ids without a mask, the run of one number with which it ends counts as one: it may be padding.
    """
    import numpy as np
    import torch

    if isinstance(sample, Mapping):
        if MASK in sample:
            return int(torch.as_tensor(sample[MASK]).sum())
        return sum(size_of(value) for value in sample.values())
    if isinstance(sample, torch.Tensor):
        ids = sample.ndim == 1 and len(sample) >= LEAST_WIDTH and not sample.is_floating_point()
        if not ids:
            return sample.numel()
        others = (sample != sample[-1]).nonzero()
        return int(others[-1]) + 2 if len(others) else 1
    if isinstance(sample, np.ndarray):
        return int(sample.size)
    if isinstance(sample, (str, bytes)):
        return len(sample)
    if isinstance(sample, (list, tuple)):
        plain = bool(sample) and isinstance(sample[0], (int, float))
        return len(sample) if plain else sum(size_of(item) for item in sample)
    return 1


def needed(batch: Any) -> tuple[int, int] | None:
    """``(columns that are not padding in every row, all columns)`` of a batch of sequences; None where there are none.

    An attention mask reports it; without one, the runs of one number with which all rows of ids end.
    """
    found = tensors(batch)
    masks = [tensor for name, tensor in found if name == MASK and tensor.ndim == 2]
    if masks:
        return _last(masks[0] != 0), masks[0].shape[1]
    rows = [tensor for _, tensor in found if tensor.ndim == 2 and not tensor.is_floating_point()]
    width = max((ids.shape[1] for ids in rows), default=0)
    if width < LEAST_WIDTH:
        return None
    same = (ids == ids[:, -1].mode().values for ids in rows if ids.shape[1] == width)
    return max(_last(~each.flip(1).cumprod(1).flip(1).bool()) for each in same), width


def tensors(batch: Any, name: str = "") -> list[tuple[str, Any]]:
    """The tensors of a batch, each with its key."""
    import torch

    if isinstance(batch, torch.Tensor):
        return [(name, batch)]
    if isinstance(batch, Mapping):
        return [found for key, value in batch.items() for found in tensors(value, str(key))]
    if isinstance(batch, (list, tuple)):
        return [found for value in batch for found in tensors(value, name)]
    return []


def _last(real: Any) -> int:
    """The last column in which any row is real, counted from 1."""
    return int((real.any(0).int() * (real.any(0).int().cumsum(0))).argmax()) + 1


def cut(batch: Any, multiple: int = 1) -> Any:
    """The batch without the columns at its end that are padding in every row, its width a multiple of a number."""
    found = needed(batch)
    if found is None:
        return batch
    real, width = found
    keep = min(width, -(-real // multiple) * multiple)
    return batch if keep == width else narrowed(batch, width, keep)


class Trimmed:
    """Makes batches without the columns at their end that are padding in every row.

    Args:
        collate: makes batches of samples.
        multiple: that widths are rounded up to.
    """

    def __init__(self, collate: Callable[[Any], Any], multiple: int = 1) -> None:
        self.collate, self.multiple = collate, multiple

    def __call__(self, samples: Any) -> Any:
        return cut(self.collate(samples), self.multiple)


def narrowed(batch: Any, width: int, keep: int) -> Any:
    """Every dimension but the first that is as wide as the sequences, narrowed."""
    import torch

    if isinstance(batch, torch.Tensor):
        for dimension in range(1, batch.ndim):
            if batch.shape[dimension] == width:
                batch = batch.narrow(dimension, 0, keep)
        return batch.contiguous()
    if isinstance(batch, Mapping):
        values = {key: narrowed(value, width, keep) for key, value in batch.items()}
        return values if type(batch) is dict else type(batch)(values)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(narrowed(value, width, keep) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(narrowed(value, width, keep) for value in batch)
    return batch


@dataclass(frozen=True)
class Grouped:
    """An order of samples in which those that meet in a batch are about as long.

    Out of every ``pool`` batches of the order that is there, samples are sorted by length and cut into batches again;
    the batches come in the order of their first sample, so that what was random stays random between batches, and no
    number is drawn. As many samples as before, each once.
    """

    sampler: Any
    lengths: tuple[int, ...]
    size: int
    pool: int

    @property
    def generator(self) -> Any:
        return getattr(self.sampler, "generator", None)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Any:
        waiting: list[int] = []
        for index in self.sampler:
            waiting.append(index)
            if len(waiting) == self.pool * self.size:
                yield from self._arranged(waiting)
                waiting = []
        yield from self._arranged(waiting)

    def _arranged(self, indices: list[int]) -> list[int]:
        order = sorted(range(len(indices)), key=lambda place: self.lengths[indices[place]])
        batches = [order[start : start + self.size] for start in range(0, len(order), self.size)]
        batches.sort(key=lambda batch: (len(batch) < self.size, min(batch)))  # a short one stays the last
        return [indices[place] for batch in batches for place in batch]


@dataclass(frozen=True)
class GroupByLength:
    """``(sampler, dataset, batch_size) -> sampler`` in which samples of about the same length follow each other.

    Each sample is read once, to learn its length.

    Args:
        pool: batches out of which samples are sorted; the more, the less padding and the less random.
    """

    pool: int = 50

    def __call__(self, sampler: Any, dataset: Any, batch_size: int) -> Any:
        lengths = tuple(size_of(dataset[index]) for index in range(len(dataset)))
        return Grouped(sampler, lengths, batch_size, self.pool)


def group_by_length(loader: Any, pool: int = 50) -> None:
    """Puts samples of about the same length into the batches of a loader, as a script's patch does."""
    batches = loader.batch_sampler
    batches.sampler = GroupByLength(pool)(batches.sampler, loader.dataset, batches.batch_size)


def padded(lengths: list[int], size: int) -> int:
    """Places of batches of so many samples, each padded to its longest."""
    return sum(
        max(batch) * len(batch) for start in range(0, len(lengths), size) if (batch := lengths[start : start + size])
    )
