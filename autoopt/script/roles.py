"""Which loaders the training reads, by what becomes of their batches: trained on, or only looked at."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import MutableMapping
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from autoopt.benchmark.contents import samples_of
from autoopt.script.frames import maker_place

_Given = tuple[int, Any, int | None]
"""A batch that no training call has taken yet: identity of its iterator, its loader (None where that is known to
train), samples (None where they cannot be counted)."""


class Roles:
    """The loaders of a script, and the batches that they have given since the last training call.

    A loader trains when a training call follows its batch. One whose batch was evaluated and which then gives another,
    or has none left, evaluates, until a training call takes a batch of it all the same. A loader that is new has the
    role of those that the same line has made, as where each epoch makes its own.

    Attributes:
        known: whether a loader was seen to be trained on.
    """

    def __init__(self) -> None:
        self.known = False
        self._training: list[weakref.ref[Any]] = []
        self._of: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._lines: MutableMapping[Any, tuple[str, int]] = WeakIdKeyDictionary()
        self._of_line: dict[tuple[str, int], set[bool]] = defaultdict(set)
        self._given: list[_Given] = []
        self._evaluated = 0  # so many of the given ones

    @property
    def training(self) -> list[Any]:
        """Loaders of the training that are still there, in the order in which they were first trained on."""
        return [loader for reference in self._training if (loader := reference()) is not None]

    def made(self, loader: Any) -> None:
        """A loader was made by the line that is under way."""
        found = maker_place(loader)
        if found is not None:
            self._lines[loader] = (found.place.file, found.place.line)

    def of(self, loader: Any) -> bool | None:
        """Whether a loader serves training, by itself or by its line; None where neither is known."""
        if loader is None:
            return None
        role, line = self._of.get(loader), self._lines.get(loader)
        if role is None and line is not None and len(self._of_line[line]) == 1:
            (role,) = self._of_line[line]
        return role

    def trains(self, loader: Any) -> bool:
        """Whether this very loader was seen to be trained on."""
        return loader is not None and self._of.get(loader) is True

    def serves_training(self, loader: Any) -> bool:
        """The same of one that is about to be read: an unknown one serves training where gradients are on."""
        role = self.of(loader)
        return torch.is_grad_enabled() if role is None else role

    def reads_on(self, reader: int, loader: Any) -> None:
        """A loader that is not known to train is about to give another batch, or has none left.

        Args:
            reader: identity of the iterator that gives it.
        """
        if any(given[0] == reader for given in self._given[: self._evaluated]):
            self._given = [given for given in self._given if given[0] != reader]
            self._evaluated = len(self._given)
            if loader is not None:
                self._note(loader, False)

    def given(self, reader: int, loader: Any, samples: int | None) -> None:
        """A batch was read; ``loader`` is None where it is known to train."""
        self._given.append((reader, loader, samples))

    def evaluated(self) -> None:
        """A model was called, and not in training: what was given so far may be for this alone."""
        self._evaluated = len(self._given)

    def trained(self) -> int | None:
        """A training call takes what was given; its samples: batches of several loaders belong together."""
        given = self._given
        if len(given) == 1 and given[0][1] is None:  # nearly always
            self._evaluated = 0
            return given.pop()[2]
        return self._taken() if given else None

    def step_ended(self) -> None:
        """Forgets batches that nobody has taken, but for one that is read ahead."""
        if self._given:
            self._given = [given for given in self._given if given[1] is None][-1:]
            self._evaluated = 0

    def _taken(self) -> int | None:
        fresh = self._given[self._evaluated :] or self._given
        ahead: dict[int, _Given] = {}  # who reads a batch ahead has two when the first of them is trained on
        first: dict[int, int | None] = {}
        for reader, loader, samples in fresh:
            if loader is not None:
                self._trains(loader)
            if reader in first:
                ahead[reader] = (reader, None, samples)
            first.setdefault(reader, samples)
        self._given, self._evaluated = [*ahead.values()], 0
        return max((samples for samples in first.values() if samples is not None), default=None)

    def _trains(self, loader: Any) -> None:
        self.known = True
        if not self.trains(loader):
            self._training.append(weakref.ref(loader))
            self._note(loader, True)

    def _note(self, loader: Any, role: bool) -> None:
        self._of[loader] = role
        if loader in self._lines:
            self._of_line[self._lines[loader]].add(role)


def count_of(batch: Any) -> int | None:
    """Samples of a batch, None where they cannot be counted; those of the usual forms without a walk through them."""
    first = batch[0] if type(batch) in (list, tuple) and batch else batch
    if type(first) is torch.Tensor and first.ndim:
        return first.shape[0]  # len() takes three times as long
    return samples_of(batch)
