"""Random samples that are the same in two processes: what is drawn for a batch follows from the batch alone.

Augmentation draws from the generators of whichever process reads a sample, so that its draws change with the number of
workers. Where two plans are compared sample by sample, they are made to depend on the indices instead.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from autoopt.benchmark.contents import array_of, leaves
from autoopt.benchmark.fingerprint import digest, unhashed
from autoopt.benchmark.seeding import kept_random_state, mix, seed_everything


def same_draws() -> None:
    """From now on, in this process and in loader workers that it forks.

    A batch that is asked for again gets the same draws: a worker cannot know how often another one was asked.
    Generators of a dataset's own stay as they are; the process's are left as if the batch had drawn nothing.
    """
    plain: Any = _MapDatasetFetcher.fetch

    @functools.wraps(plain)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        with kept_random_state():
            seed_everything(mix("draws", str(possibly_batched_index)))
            return plain(self, possibly_batched_index)

    _MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]


def same_samples(dataset: Any) -> bool | None:
    """Whether the same index gives the same sample under other random numbers; None where that is unknown."""
    if isinstance(dataset, IterableDataset):
        return None
    with kept_random_state():
        for index in range(min(2, len(dataset))):  # the first alone may draw from a seed of its own
            seen = []
            for seed in (1, 2, 3):
                seed_everything(seed)
                seen.append(dataset[index])
            if unhashed(seen[0]):
                return None
            if not all(equal(seen[0], other) for other in seen[1:]):
                return False
    return True


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
