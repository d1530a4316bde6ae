"""Random numbers of a script's samples, which depend on no process.

Augmentation draws where a sample is read: in the training's process without workers, in another with them. So a
dataset's draws stay out of the generators that dropout draws from, else two plans that train alike would train
differently. For a probe, which compares two plans and times nothing, they follow from the sample's indices alone.
"""

from __future__ import annotations

import functools
import operator
import random
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher

from autoopt.benchmark.seeding import mix

_LOOKS = 3
"""Batches of an epoch after which it is known from which generators a dataset draws; the others are left alone."""


class Order(torch.Generator):
    """A loader's generator that begins each epoch anew: how far a sampler is read, and so what it draws, depends on the
    workers where a trainer stops at the last batch."""

    def begin_epoch(self) -> None:
        self.manual_seed(mix(self.initial_seed(), "epoch"))


def own_draws(seed: int) -> None:
    """From now on what this process reads for a loader is drawn from generators of its own.

    They are those of the host: what computes on a device draws from the device's.
    """

    @functools.cache
    def states() -> list[Any]:
        """States as datasets left them; the first ones follow from the seeds, alike in all processes."""
        first = mix(seed, torch.initial_seed(), "draws")
        drawn = np.random.RandomState(first % 2**32).get_state(legacy=False)
        return [random.Random(first).getstate(), drawn, torch.Generator().manual_seed(first).get_state()]

    def around(plain: Any) -> Any:
        @functools.wraps(plain)
        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            used = fetcher.__dict__.get("_autoopt_drawn")
            if used is None:
                used = fetcher._autoopt_drawn = _Used()
            if not used.generators or get_worker_info() is not None:
                fetcher.fetch = functools.partial(plain, weakref.proxy(fetcher))  # from now on, by no way round
                return plain(fetcher, possibly_batched_index)
            inside = states()
            outside = {which: _GENERATORS[which][0]() for which in used.generators}
            for which in outside:
                _GENERATORS[which][1](inside[which])
            try:
                return plain(fetcher, possibly_batched_index)
            finally:
                drawn = set()
                for which, state in outside.items():
                    before, inside[which] = inside[which], _GENERATORS[which][0]()
                    if used.left and not _GENERATORS[which][2](before, inside[which]):
                        drawn.add(which)
                    _GENERATORS[which][1](state)
                used.look(drawn)

        return fetch

    for kind in (_MapDatasetFetcher, _IterableDatasetFetcher):
        kind.fetch = around(kind.fetch)  # type: ignore[method-assign]


class _Used:
    """The generators that one epoch of a loader draws from, as far as is known: all of them at first."""

    def __init__(self) -> None:
        self.generators: tuple[int, ...] = (0, 1, 2)
        self.left = _LOOKS
        self._drawn: set[int] = set()

    def look(self, drawn: set[int]) -> None:
        """A batch has drawn from these."""
        if self.left:
            self.left, self._drawn = self.left - 1, self._drawn | drawn
            if not self.left:
                self.generators = tuple(sorted(self._drawn))


def _same_numpy(one: Any, other: Any) -> bool:
    before, after = one["state"], other["state"]
    return before["pos"] == after["pos"] and bool((before["key"] == after["key"]).all())


_GENERATORS: tuple[tuple[Any, Any, Any], ...] = (
    (random.getstate, random.setstate, operator.eq),
    (functools.partial(np.random.get_state, legacy=False), np.random.set_state, _same_numpy),
    (torch.get_rng_state, torch.set_rng_state, torch.equal),
)
"""Python's, NumPy's and torch's: how each one's state is read, put, and compared."""
