"""Random samples that are the same in two processes: what is drawn for a batch follows from the batch alone.

Augmentation draws from the generators of whichever process reads a sample, so that its draws change with the number of
workers. Where two plans are compared sample by sample, they are made to depend on the indices instead.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher

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
