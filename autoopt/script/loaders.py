"""Loaders of a script: who listens to them, which of them the training reads, where they are made and read, and draws.

Random numbers of a script's samples depend on no process. Augmentation draws where a sample is read: in the training's
process without workers, in another with them. So a dataset's draws stay out of the generators that dropout draws from,
else two plans that train alike would train differently. For a probe, which compares two plans and times nothing, they
follow from the sample's indices alone.
"""

from __future__ import annotations

import functools
import itertools
import operator
import random
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Collection, MutableMapping, Sequence, Sized
from contextlib import suppress
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind
from torch.utils.weak import WeakIdKeyDictionary

from autoopt.benchmark.contents import samples_of, users_dataset
from autoopt.benchmark.seeding import mix
from autoopt.script.frames import maker_place
from autoopt.script.hook.seeds import in_place_of
from autoopt.script.session import Session

_Given = tuple[int, Any, int | None]
"""A batch that no training call has taken yet: number of its pass, its loader (None where that is known to
train), samples (None where they cannot be counted)."""

_passes = itertools.count()
"""Numbers of passes over loaders. An iterator's identity would not do: the next pass may be given the same address, and
with workers that persist it is the same iterator."""
_LOOKS = 3
"""Batches of an epoch after which it is known from which generators a dataset draws; the others are left alone."""


class Watcher:
    """Who is notified what the torch hooks see, besides the session; does nothing but for what a subclass says.

    ``backward`` is called before the pass, while the loss has its history; ``root_found`` before a model's first
    training call, ``frozen_called`` before the call of one that no optimizer holds, during the first steps. A loader
    that is made in ``loader_made`` is autoopt's own. ``drawn``: the indices of a batch, as its
    sampler drew them; None where nobody knows them.
    """

    def loader_made(self, loader: Any) -> None: ...
    def loader_opened(self, loader: Any) -> None: ...
    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None: ...
    def optimizer_made(self, optimizer: Optimizer) -> None: ...
    def root_found(self, model: nn.Module) -> None: ...
    def evaluated_first(self, model: nn.Module) -> None: ...
    def frozen_called(self, module: nn.Module, args: Any, kwargs: Any) -> None: ...
    def forward(self, model: nn.Module, args: Any, kwargs: Any, training: bool) -> None: ...
    def forward_done(self, model: nn.Module, output: Any) -> None: ...
    def backward(self, loss: Any) -> None: ...
    def stepped(self, optimizer: Optimizer) -> None: ...
    def saved(self, *what: Any) -> None: ...


class Roles:
    """The loaders of a script, and the batches that they have given since the last training call.

    A loader trains when a training call follows its batch. One whose batch was evaluated and which then gives another,
    or has none left, evaluates, until a training call takes a batch of it all the same. A loader that is new has the
    role of those that the same line has made, as where each epoch makes its own.

    Args:
        trains: whether models are in training mode, as far as any is known.

    Attributes:
        known: whether a loader was seen to be trained on.
        passed_over: batches that were read before the first one that was trained on, and seconds from the first on: a
            resumed run reads on to where it stood.
    """

    def __init__(self, trains: Callable[[], bool] = lambda: True) -> None:
        self._training_mode = trains
        self.known = False
        self.passed_over = 0, 0.0
        self._first_given = 0.0
        self._training: list[weakref.ref[Any]] = []
        self._of: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._lines: MutableMapping[Any, tuple[str, int]] = WeakIdKeyDictionary()
        self._of_line: dict[tuple[str, int], set[bool]] = defaultdict(set)
        self._contents: MutableMapping[Any, dict[str, Any]] = WeakIdKeyDictionary()
        self._first_contents: MutableMapping[Any, dict[str, Callable[[], Any]]] = WeakIdKeyDictionary()  # by dataset
        self._changed: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._evaluated_data: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._given: list[_Given] = []
        self._evaluated = 0  # so many of the given ones
        self._unlearnt = set[int]()  # passes whose last batch was read with gradients off, or to models that evaluate

    @property
    def training(self) -> list[Any]:
        """Loaders of the training that are still there, in the order in which they were first trained on."""
        return [loader for reference in self._training if (loader := reference()) is not None]

    def made(self, loader: Any) -> None:
        """A loader was made by the line that is under way."""
        found = maker_place(loader)
        if found is not None:
            self._lines[loader] = (found.place.file, found.place.line)
        now = self._contents[loader] = _contents(loader.dataset)
        with suppress(TypeError):  # a list, to which nothing can refer weakly
            seen = {name: _weakly(value) for name, value in now.items()}
            first = self._first_contents.setdefault(users_dataset(loader.dataset), seen)
            if any(first[name]() is not now[name] for name in first.keys() & now.keys()):  # of an earlier loader
                self._changed[loader] = True

    def opened(self, loader: Any) -> None:
        """A loader is about to be read; what its dataset holds is compared with what it held as the loader was made."""
        held, now = self._contents.pop(loader, None), _contents(loader.dataset)
        if held is not None and any(held.get(name) is not now.get(name) for name in held | now):
            self._changed[loader] = True

    @property
    def dataset_changes(self) -> bool:
        """Whether the script has put other contents into a dataset of the training in between."""
        return any(loader in self._changed for loader in self.training)

    def validating(self, lines: Collection[tuple[str, int]]) -> list[Any]:
        """Loaders that evaluate what they were made with: they were seen to, or one of these lines has made them.

        Where each evaluation makes its own, and the last one is gone, the dataset in its place.
        """
        made = ((loader, self.of(loader), line) for loader, line in self._lines.items() if loader not in self._changed)
        found = [loader for loader, role, line in made if role is False or (role is None and line in lines)]
        known = {id(loader.dataset) for loader in self._of}
        return found + [dataset for dataset in self._evaluated_data if id(dataset) not in known]

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
        """The same of one that is about to be read: an unknown one does with gradients on and models in training mode.

        Evaluations are written without ``no_grad``, too.
        """
        role = self.of(loader)
        return torch.is_grad_enabled() and self._training_mode() if role is None else role

    def reads_on(self, reader: int, loader: Any) -> None:
        """A loader that is not known to train is about to give another batch, or has none left.

        Args:
            reader: number of the pass that it belongs to.
        """
        if any(given[0] == reader for given in self._given[: self._evaluated]):
            self._given = [given for given in self._given if given[0] != reader]
            self._evaluated = len(self._given)
            if loader is not None:
                self._note(loader, False)

    def given(self, reader: int, loader: Any, samples: int | None) -> None:
        """A batch was read; ``loader`` is None where it is known to train."""
        if not self._given:
            self._first_given = perf_counter()
        self._given.append((reader, loader, samples))
        if loader is not None:
            learns = torch.is_grad_enabled() and self._training_mode()
            (self._unlearnt.discard if learns else self._unlearnt.add)(reader)

    def evaluated(self) -> None:
        """A model was called, and not in training: what was given so far may be for this alone."""
        self._evaluated = len(self._given)

    @property
    def latest(self) -> int | None:
        """Samples of the batch that was given last; None where they cannot be counted."""
        return self._given[-1][2] if self._given else None

    def trained(self) -> int | None:
        """A training call takes what was given; its samples: batches of several loaders belong together."""
        given = self._given
        if len(given) == 1 and given[0][1] is None:  # nearly always
            self._evaluated = 0
            return given.pop()[2]
        if not given:
            return None
        fresh = given[self._evaluated :] or given
        # a model that no optimizer holds, such as an average of weights, is evaluated without being known
        fresh = [given for given in fresh if given[1] is None or given[0] not in self._unlearnt] or fresh
        read = sum(reader == fresh[-1][0] for reader, _, _ in fresh)
        if read > 2 and not self.known:  # two: one is read ahead
            self.passed_over = read - 1, perf_counter() - self._first_given
        ahead: dict[int, _Given] = {}  # who reads a batch ahead has two when the first of them is trained on
        first: dict[int, int | None] = {}
        for reader, loader, samples in fresh:
            self.known = self.known or loader is not None
            if loader is not None and not self.trains(loader):
                self._training.append(weakref.ref(loader))
                self._note(loader, True)
            if reader in first:
                ahead[reader] = (reader, None, samples)
            first.setdefault(reader, samples)
        self._given, self._evaluated = [*ahead.values()], 0
        self._unlearnt.clear()
        return max((samples for samples in first.values() if samples is not None), default=None)

    def step_ended(self) -> None:
        """Forgets batches that nobody has taken, but for one that is read ahead."""
        if self._given:
            self._given = [given for given in self._given if given[1] is None][-1:]
            self._evaluated = 0

    def _note(self, loader: Any, role: bool) -> None:
        self._of[loader] = role
        if not role and loader not in self._changed:
            with suppress(TypeError):
                self._evaluated_data[loader.dataset] = True
        if loader in self._lines:
            self._of_line[self._lines[loader]].add(role)


class Order(torch.Generator):
    """A loader's generator that begins each epoch anew: how far a sampler is read, and so what it draws, depends on the
    workers where a trainer stops at the last batch."""

    def begin_epoch(self) -> None:
        self.manual_seed(mix(self.initial_seed(), "epoch"))


class LoaderHook:
    """The loaders of one process.

    Attributes:
        merged: changes the arguments that a loader, which is under way, is made with.
        given: whether the training was given a batch since the last step's end.
        latest: the iterator that gave the last batch.
    """

    def __init__(self, session: Session, roles: Roles, watchers: list[Watcher]) -> None:
        self.session, self.roles, self.watchers = session, roles, watchers
        self.merged: Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None
        self.merged = None
        self.given = self._changing = False
        self.latest: Callable[[], Any] | None = None

    def install(self) -> None:
        """Puts the listeners in place."""
        made, opened, advanced = DataLoader.__init__, DataLoader.__iter__, _BaseDataLoaderIter.__next__
        drawn = _BaseDataLoaderIter._next_index
        hook, session, roles, watchers = self, self.session, self.roles, self.watchers

        @in_place_of(DataLoader, "__init__")
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if session.standing or hook._changing:
                return made(self, *args, **kwargs)
            hook._changing = True  # what changes a dataset may read it by a loader of its own
            try:
                if hook.merged is not None:
                    args, kwargs = hook.merged(self, args, kwargs)
                made(self, *args, **kwargs)
                roles.made(self)
                for watcher in watchers:
                    watcher.loader_made(self)
            finally:
                hook._changing = False
            return None

        @in_place_of(DataLoader, "__iter__")
        def iterate(self: Any) -> Any:
            if session.standing or hook._changing:
                return opened(self)
            if isinstance(self.generator, Order):
                self.generator.begin_epoch()
            # Compared with others: workers that persist are not given a seed again, and drawing it all the same keeps
            # the order of samples. A training for real draws what the script's lines draw.
            if session.stops and self.persistent_workers and self._iterator is not None and self.generator is not None:
                torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            training = roles.serves_training(self) and torch.is_grad_enabled()
            if training:
                session.data_begin(opens=True)
            else:
                session.aside("evaluate")
            roles.opened(self)
            for watcher in watchers:
                watcher.loader_opened(self)
            if getattr(self, "_iterator", None) is not None:  # workers that persist begin anew
                self._iterator.__dict__.pop("_autoopt_drawn", None)
            iterator: Any = opened(self)
            iterator._autoopt_loader, iterator._autoopt_number = weakref.ref(self), next(_passes)
            if getattr(self, "_iterator", None) is not iterator:  # one made in a loop's header is held by nothing
                iterator._autoopt_keeps = self
            if training:
                session.data_end(has_come=False)
                iterator.__dict__.pop("_autoopt_evaluates", None)  # workers that persist keep their iterator
            elif roles.trains(self):
                iterator._autoopt_evaluates = True
            return iterator

        @in_place_of(_BaseDataLoaderIter, "__next__")
        def following(self: Any) -> Any:
            if session.standing or hook._changing:
                return advanced(self)
            if "_autoopt_evaluates" in self.__dict__:  # a pass over the training's data that nothing is learnt from
                hook._reads_training_data()
                try:
                    batch = advanced(self)
                except StopIteration:
                    hook._reads_training_data()
                    raise
                hook._evaluated(_counted(_drawn(self), batch))
                return batch
            loader = None
            training = "_autoopt_trains" in self.__dict__
            if not training:
                reference = getattr(self, "_autoopt_loader", None)
                loader = reference() if reference is not None else None
                roles.reads_on(_pass_of(self), loader)
                training = roles.serves_training(loader) and torch.is_grad_enabled()
                if training and roles.trains(loader):  # it is not looked up in every step
                    self._autoopt_trains, loader = True, None
            if not training:
                session.aside("evaluate")
                batch = advanced(self)
            else:
                session.data_begin()
                try:
                    batch = advanced(self)
                finally:
                    session.data_end()
                hook.given = True
            indices = _drawn(self)
            count = _counted(indices, batch)
            if not training:
                hook._evaluated(count)
            hook.latest = weakref.ref(self)
            roles.given(_pass_of(self), loader, count)
            if watchers:
                reported = loader if loader is not None else getattr(self, "_autoopt_loader", lambda: None)()
                for watcher in watchers if reported is not None else ():
                    watcher.batch_given(reported, batch, training, indices)
            return batch

        @in_place_of(_BaseDataLoaderIter, "_next_index")
        def next_index(self: Any) -> Any:
            index = drawn(self)  # type: ignore[no-untyped-call]
            if self._dataset_kind == _DatasetKind.Map and isinstance(index, (list, tuple)):
                self.__dict__.setdefault("_autoopt_drawn", deque()).append(index)
            return index

    def _evaluated(self, samples: int | None) -> None:
        """A batch is read by an evaluation; its samples, None where they cannot be counted."""
        found = self.session.evaluating
        if found is not None:
            found.batches += 1
            found.samples += samples or 0

    def _reads_training_data(self) -> None:
        if self.session.evaluating is not None:
            self.session.evaluating.reads_training_data(perf_counter())

    def evaluates(self) -> None:
        """A batch that the training's loader gave is evaluated: so are those that follow, until one is trained on."""
        iterator = self.latest() if self.latest is not None else None
        if iterator is None or "_autoopt_evaluates" in iterator.__dict__:
            return
        loader = getattr(iterator, "_autoopt_loader", lambda: None)()
        if self.roles.trains(loader) and self.session.evaluating is not None:
            iterator._autoopt_evaluates = True
            self._reads_training_data()
            self._evaluated(self.roles.latest)  # when it was read, nothing showed what for

    def trains(self) -> None:
        """A batch is trained on: an evaluation that follows does not read it."""
        iterator = self.latest() if self.latest is not None else None
        if iterator is not None:
            iterator.__dict__.pop("_autoopt_evaluates", None)
        self.latest = None


def _contents(dataset: Any) -> dict[str, Any]:
    """The collections, arrays and tensors that a dataset holds, by their names."""
    held = getattr(users_dataset(dataset), "__dict__", {})
    return {name: value for name, value in held.items() if isinstance(value, Sized) and not isinstance(value, str)}


def _weakly(value: Any) -> Callable[[], Any]:
    """What gives a value as long as somebody holds it: arrays that a script has given up are not kept."""
    try:
        return weakref.ref(value)
    except TypeError:  # a list
        return lambda: value


def _pass_of(iterator: Any) -> int:
    """The number of the pass that an iterator makes; one that no loader was asked for makes a single one."""
    held = iterator.__dict__
    if "_autoopt_number" not in held:
        held["_autoopt_number"] = next(_passes)
    return int(held["_autoopt_number"])


def _drawn(iterator: Any) -> Sequence[Any] | None:
    """The indices of the batch that an iterator has just given; None where nobody knows them."""
    waiting = iterator.__dict__.get("_autoopt_drawn")
    return waiting.popleft() if waiting else None


def _counted(drawn: Sequence[Any] | None, batch: Any) -> int | None:
    """Samples of a batch: as many as were drawn for it, else as it reports."""
    return samples_of(batch) if drawn is None else len(drawn)


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
            used = fetcher.__dict__.setdefault("_autoopt_drawn", _Used())
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
