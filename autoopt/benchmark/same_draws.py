"""Random samples that are the same in two processes: what is drawn for a batch follows from the batch alone.

Augmentation draws from the generators of whichever process reads a sample, so that its draws change with the number of
workers. Where two plans are compared sample by sample, they are made to depend on the indices instead.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

from torch.utils.data._utils.fetch import _MapDatasetFetcher

from autoopt.benchmark.seeding import kept_random_state, mix, seed_everything


def same_draws() -> None:
    """From now on, in this process and in loader workers that it forks.

    A batch that is asked for again gets other draws than the first time, as in every epoch of a loader that does not
    shuffle. Generators of a dataset's own stay as they are; the process's are left as if the batch had drawn nothing.
    """
    plain: Any = _MapDatasetFetcher.fetch
    times: Counter[int] = Counter()

    @functools.wraps(plain)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        batch = mix("draws", str(possibly_batched_index))
        times[batch] += 1
        with kept_random_state():
            seed_everything(mix(batch, times[batch]))
            return plain(self, possibly_batched_index)

    _MapDatasetFetcher.fetch = fetch  # type: ignore[method-assign]
