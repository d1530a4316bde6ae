"""The order of samples: the same for a seed, whatever the number of workers and whatever else draws numbers.

Without a generator of its own a sampler draws from torch's global one, which dropout and augmentation
draw from too, at moments that depend on the workers. So whatever has no generator gets one, in the
baseline as in every candidate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from autoopt.benchmark.seeding import mix, random_state, seed_everything, set_random_state


class Generators:
    """The generators of one loader, at a known state at the start of every epoch.

    Args:
        seed: of the run.
        label: tells loaders of the same run apart.
    """

    def __init__(self, seed: int, label: str) -> None:
        self._seed = (seed, label)
        self._own: dict[str, torch.Generator] = {}
        self._users: list[torch.Generator] = []

    def own(self, name: str) -> torch.Generator:
        """A generator of ours for what has none; seeded anew in every epoch."""
        if name not in self._own:
            self._own[name] = torch.Generator().manual_seed(mix(*self._seed, name, 0))
        return self._own[name]

    def users(self, generator: torch.Generator) -> torch.Generator:
        """Notes a generator that the user gave; it goes on from epoch to epoch, as theirs does."""
        if all(generator is not known for known in self._users):
            self._users.append(generator)
        return generator

    def start_epoch(self, epoch: int) -> None:
        for name, generator in self._own.items():
            generator.manual_seed(mix(*self._seed, name, epoch))

    def state(self) -> list[torch.Tensor]:
        """The states of the user's generators; ours follow from the epoch."""
        return [generator.get_state() for generator in self._users]

    def set_state(self, states: list[torch.Tensor]) -> None:
        for generator, state in zip(self._users, states, strict=True):
            generator.set_state(state)


class Shielded:
    """A sampler of the user's that may draw from the global generators, iterated under random states of its own.

    Swapping all of them for every item would cost more than a short step. Most samplers draw when they
    start, so that the swap ends with the first item that draws nothing, and each epoch begins with it.

    Args:
        sampler: a sampler or batch sampler.
        seed: of its private state in the first epoch.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self.sampler = sampler
        self._seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        outside = random_state()
        seed_everything(mix(self._seed, self.epoch))
        inside = random_state()
        items: Iterator[Any]
        try:
            items = iter(self.sampler)
        finally:
            inside = random_state()
            set_random_state(outside)
        quiet = 0
        while True:
            if quiet >= 2:
                yield from items
                return
            outside = random_state()
            set_random_state(inside)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                after = random_state()
                set_random_state(outside)
            quiet = quiet + 1 if _same(inside, after) else 0
            inside = after
            yield item


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (
        torch.equal(one["torch"], other["torch"])
        and one["python"] == other["python"]
        and one["numpy"][2:] == other["numpy"][2:]
        and bool((one["numpy"][1] == other["numpy"][1]).all())
    )
