"""Listening where loaders are made and read."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from autoopt.script.roles import Roles, count_of
from autoopt.script.session import Session
from autoopt.script.watcher import Watcher


class LoaderJoint:
    """The loaders of one process.

    Args:
        session: told of waits for data.
        roles: told which loaders are read.
        watchers: told of loaders and batches.

    Attributes:
        merged: changes the arguments that a loader, which is under way, is made with.
        made: told of each loader once it is made.
        given: whether the training was given a batch since the last step's end.
    """

    def __init__(self, session: Session, roles: Roles, watchers: list[Watcher]) -> None:
        self.session, self.roles, self.watchers = session, roles, watchers
        self.merged: Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None
        self.merged = None
        self.made: Callable[[Any], None] | None = None
        self.given = self._changing = False

    def install(self) -> None:
        """Puts the listeners in place."""
        made, opened, advanced = DataLoader.__init__, DataLoader.__iter__, _BaseDataLoaderIter.__next__
        drawn = _BaseDataLoaderIter._next_index
        joint, session, roles, watchers = self, self.session, self.roles, self.watchers
        plain = session.plain

        @functools.wraps(made)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if session.standing or joint._changing:
                return made(self, *args, **kwargs)
            joint._changing = True  # what changes a dataset may read it by a loader of its own
            try:
                if joint.merged is not None:
                    args, kwargs = joint.merged(self, args, kwargs)
                made(self, *args, **kwargs)
                roles.made(self)
                if joint.made is not None:
                    joint.made(self)
            finally:
                joint._changing = False
            for watcher in watchers:
                watcher.loader_made(self)
            return None

        @functools.wraps(opened)
        def iterate(self: Any) -> Any:
            if session.standing or joint._changing:
                return opened(self)
            if session.stops:  # compared with others; a training for real draws what the script's lines draw
                joint._draw(self)
            training = roles.serves_training(self) and not joint._evaluated()
            if training:
                session.data_begin()
            else:
                session.aside("evaluate")
            for watcher in watchers:
                watcher.loader_opened(self)
            if getattr(self, "_iterator", None) is not None:  # workers that persist begin anew
                self._iterator.__dict__.pop("_autoopt_sizes", None)
            iterator: Any = opened(self)
            iterator._autoopt_loader = weakref.ref(self)
            if getattr(self, "_iterator", None) is not iterator:  # one made in a loop's header is held by nothing
                iterator._autoopt_keeps = self
            if training:
                session.data_end()
            return iterator

        @functools.wraps(advanced)
        def following(self: Any) -> Any:
            if plain.on and "_autoopt_trains" in self.__dict__ and len(plain.arrived) == len(plain.ends):
                plain.opened.append(perf_counter())
                try:
                    batch = advanced(self)
                finally:
                    plain.arrived.append(perf_counter())
                plain.given = _counted(self, batch) or 0
                return batch
            if session.standing or joint._changing:
                return advanced(self)
            loader = None
            training = "_autoopt_trains" in self.__dict__
            if not training:
                reference = getattr(self, "_autoopt_loader", None)
                loader = reference() if reference is not None else None
                roles.reads_on(id(self), loader)
                training = roles.serves_training(loader)
                if roles.trains(loader):  # it is not looked up in every step
                    self._autoopt_trains, loader = True, None
            if training and joint._evaluated():
                batch = advanced(self)
                _counted(self, batch)
                return batch
            if not training:
                session.aside("evaluate")
                batch = advanced(self)
            else:
                session.data_begin()
                try:
                    batch = advanced(self)
                finally:
                    session.data_end()
                joint.given = True
            roles.given(id(self), loader, _counted(self, batch))
            if watchers:
                told = loader if loader is not None else getattr(self, "_autoopt_loader", lambda: None)()
                for watcher in watchers if told is not None else ():
                    watcher.batch_given(told, batch, training)
            return batch

        @functools.wraps(drawn)
        def next_index(self: Any) -> Any:
            index = drawn(self)  # type: ignore[no-untyped-call]
            if self._dataset_kind == _DatasetKind.Map and isinstance(index, (list, tuple)):
                self.__dict__.setdefault("_autoopt_sizes", deque()).append(len(index))
            return index

        _BaseDataLoaderIter._next_index = next_index  # type: ignore[method-assign]
        DataLoader.__init__ = init  # type: ignore[method-assign]
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        _BaseDataLoaderIter.__next__ = following  # type: ignore[method-assign]

    def _evaluated(self) -> bool:
        """Whether what is read now is evaluated, though the training reads it too: a pass over the training data."""
        return self.session.evaluates and not torch.is_grad_enabled()

    @staticmethod
    def _draw(loader: Any) -> None:
        """Workers that persist are not given a seed again; drawing it all the same keeps the order of samples."""
        if loader.persistent_workers and loader._iterator is not None and loader.generator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)


def _counted(iterator: Any, batch: Any) -> int | None:
    """Samples of the batch that an iterator has just given: as many as its batch sampler drew, else as it tells."""
    sizes = iterator.__dict__.get("_autoopt_sizes")
    return sizes.popleft() if sizes else count_of(batch)
