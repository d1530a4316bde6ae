"""Batches without end: epoch after epoch, grouped for accumulation, on their device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autoopt.benchmark.clock import StageClock
from autoopt.benchmark.contents import added, samples_of, sizes_of
from autoopt.benchmark.fingerprint import same_samples
from autoopt.benchmark.loader import Loader, Shielded
from autoopt.benchmark.transfer import END, CopyAhead, Move
from autoopt.errors import WorkloadError
from autoopt.records.messages import EpochOrder


def tell_epoch(loader: Loader, epoch: int) -> None:
    """Calls ``set_epoch`` of whatever has one; before the loader is iterated."""
    inner = loader.loader
    parts = [part.sampler if isinstance(part, Shielded) else part for part in (inner.sampler, inner.batch_sampler)]
    holders = {id(each): each for part in (*parts, inner.dataset) for each in (part, getattr(part, "sampler", None))}
    for holder in holders.values():
        hook = getattr(holder, "set_epoch", None)
        if callable(hook):
            hook(epoch)


def epoch_order(loader: Loader, most: int) -> EpochOrder | None:
    """The order of the first two epochs by the sampler alone: no sample is read, and the loader is of no use then.

    None of an epoch of more than ``most`` samples, and where the order is not that of single samples.
    """
    inner = loader.loader
    batches: Any = inner.batch_sampler
    if isinstance(inner.dataset, IterableDataset) or type(batches) is not BatchSampler:
        return None
    epochs = []
    for epoch in range(2):
        loader.generators.start_epoch(epoch)
        tell_epoch(loader, epoch)
        try:
            length = len(inner.dataset)  # type: ignore[arg-type]
            epochs.append(list(islice(iter(batches.sampler), most + 1)))
        except Exception:  # a sampler of the user's that reports no length, or may be iterated once
            return None
    first, second = epochs
    if len(first) > most or not all(isinstance(index, int) for index in first):
        return None
    kept = len(first) - len(first) % batches.batch_size if batches.drop_last else len(first)
    return EpochOrder(length=length, samples=kept, distinct=len(set(first)), repeats=first == second)


class BatchIterator:
    """Gives the micro-batches of one optimizer step at a time.

    Args:
        move: puts a batch on the device; None where it is there already.
        accumulation: micro-batches per step; the last step of an epoch may have fewer.
        prefetch: batches that are copied ahead on a stream of their own (CUDA alone).

    Attributes:
        latest, taken: the group that was given last, and the samples in it; None where they cannot be counted.
        epoch, batch: the epoch that is read, from 0, and the batches that it gave so far.
        openings: seconds until each epoch's first batch was there.
    """

    def __init__(
        self,
        loader: Loader,
        move: Move | None,
        accumulation: int,
        clock: StageClock,
        prefetch: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self._loader = loader
        self._accumulation = accumulation
        self.mark = clock.mark
        self.move_by(move, prefetch, device)
        self.epoch = -1
        self.batch = 0
        self.on_epoch: Callable[[], None] | None = None
        self._iterator: Iterator[Any] | None = None
        self._states: list[torch.Tensor] = []
        self.latest: list[Any] | None = None
        self.taken: int | None = 0
        self.openings: list[float] = []
        self._sizes: Callable[[int], int] | None = None

    def move_by(self, move: Move | None, prefetch: int = 0, device: torch.device | None = None) -> None:
        """From here on batches reach the device so; see the arguments of the class. Those copied ahead are dropped."""
        self._move = move
        self.ahead = (
            CopyAhead(device, move, prefetch) if prefetch and device and device.type == "cuda" and move else None
        )

    def group(self) -> list[Any]:
        """The micro-batches of the next step, on their device.

        Raises:
            WorkloadError: the loader gave no batch in a whole epoch.
        """
        first = self._read()
        if first is END:
            began = perf_counter()
            if self.epoch >= 0 and self.on_epoch is not None:
                self.on_epoch()
            self.epoch, self.batch = self.epoch + 1, 0
            self._open_epoch()
            first = self._read()
            if first is END:
                raise WorkloadError(
                    f"the training loader gave no batch in epoch {self.epoch}",
                    hint="check the length of the dataset, drop_last, and that an iterable dataset can be read again",
                )
            self.openings.append(perf_counter() - began)
        self.latest = group = [first]
        self.taken = self._size(first)
        while len(group) < self._accumulation:
            following = self._read()
            if following is END:
                break
            group.append(following)
            self.taken = added(self.taken, self._size(following))
        return group

    def _size(self, batch: Any) -> int | None:
        """Samples of the next batch: as many as the loader reports, fewer where ``collate_fn`` has left some out."""
        reported = None if self._sizes is None else self._sizes(self.batch)
        self.batch += 1
        seen = samples_of(batch)
        return seen if reported is None else reported if seen is None else min(seen, reported)

    def refill(self) -> None:
        """Copies ahead; called while the device is busy with the step that was just given to it."""
        if self.ahead and self._iterator is not None:
            self.ahead.fill(self._iterator)

    def _open_epoch(self, unread: int = 0) -> None:
        """Begins an epoch; ``unread``: batches of it that are passed over."""
        loader, inner = self._loader, self._loader.loader
        loader.generators.start_epoch(self.epoch)
        self._states = loader.generators.state()
        tell_epoch(loader, self.epoch)
        if inner.persistent_workers and inner._iterator is not None and inner.generator is not None:
            # A loader whose workers persist does not draw their seed again; drawing it here keeps the
            # order of samples the same as without persistent workers.
            torch.empty((), dtype=torch.int64).random_(generator=inner.generator)
        self._sizes = sizes_of(inner)
        self._iterator = behind(inner, unread) if unread else iter(inner)

    def _read(self) -> Any:
        """The next batch on its device; ``END`` where the epoch has no further one."""
        if self._iterator is None:
            return END
        if self.ahead is None:
            batch = next(self._iterator, END)
            self.mark("data")
        else:
            self.ahead.fill(self._iterator, 1)
            self.mark("data")
            batch = self.ahead.take()
            self.mark("copy")
        if batch is END:
            self._iterator = None
        elif self.ahead is None and self._move is not None:
            batch = self._move(batch)
            self.mark("copy")
        return batch

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: the epoch, the batches already given, the user's generators at the epoch's start."""
        return {"epoch": self.epoch, "batch": self.batch, "ended": self._iterator is None, "generators": self._states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to where another one stood.

        What it had given is passed over without being read where samples draw no random numbers; else it is read, so
        that the workers' own random numbers are where they were.
        """
        self._iterator = None
        self.epoch, self.batch = state["epoch"], state["batch"]
        if self.epoch < 0:
            return
        self._loader.generators.set_state(state["generators"])
        unread = 0
        with suppress(Exception):  # a dataset whose keys come from its own sampler, and what it raises at others
            unread = self.batch if self.batch and same_samples(self._loader.loader.dataset) else 0
        self._open_epoch(unread)
        assert self._iterator is not None
        for _ in range(self.batch - unread):
            next(self._iterator, None)
        if state["ended"]:
            for _ in self._iterator:
                pass
            self._iterator = None

    def close(self) -> None:
        """Ends the loader's workers."""
        self._iterator = None
        inner = self._loader.loader
        iterator = inner._iterator
        if iterator is not None:
            inner._iterator = None
            shutdown = getattr(iterator, "_shutdown_workers", None)
            if shutdown is not None:
                shutdown()


class Behind:
    """A sampler that leaves out the first batches of the first epoch that it is asked for."""

    def __init__(self, sampler: Any, count: int) -> None:
        self.sampler, self.count = sampler, count

    def __iter__(self) -> Iterator[Any]:
        count, self.count = self.count, 0
        yield from islice(self.sampler, count, None)

    def __len__(self) -> int:
        return len(self.sampler)


def behind(loader: DataLoader[Any], count: int) -> Iterator[Any]:
    """The batches of an epoch behind the first ``count``, of which no sample is read.

    Args:
        loader: of a dataset that is read by index. One whose samples draw random numbers draws others from here on.
    """
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    whole = getattr(loader, name)
    loader.__dict__[name] = Behind(whole, count)  # torch refuses to set it on a loader
    try:
        return iter(loader)
    finally:
        loader.__dict__[name] = whole
