"""Batches of a training, read without it noticing, and measuring in isolation.

What a step changes is put back, and what cannot be put back runs in a forked child."""

from __future__ import annotations

import io
import itertools
import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from autoopt.benchmark.contents import tensor_leaves
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import kept_modes
from autoopt.benchmark.switching import KeptState


class ChildFailed(Exception):  # noqa: N818
    """The forked measurement raised, died or took too long; the message says which."""


def forked(work: Callable[[], None], *, daemon: bool) -> Any:
    """Starts a forked process that works with one compute thread, as a loader's worker does: more do not survive it."""

    def alone() -> None:
        torch.set_num_threads(1)
        work()

    process = multiprocessing.get_context("fork").Process(target=alone, daemon=daemon)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork next to threads, as a DataLoader does it
        process.start()
    return process


def in_child(measure: Callable[[], Any], timeout: float = 120.0) -> Any:
    """Runs ``measure`` in a forked child with one compute thread and hands back what it returns.

    It comes as bytes, tensors included: nothing of it needs the child any more.

    Raises:
        ChildFailed: it raised, died, or took longer than ``timeout`` seconds; it is gone then.
    """
    ours, theirs = multiprocessing.get_context("fork").Pipe(duplex=False)

    def child() -> None:
        def send(kind: str, value: Any) -> None:
            torch.save((kind, value), buffer := io.BytesIO())
            theirs.send_bytes(buffer.getvalue())

        try:
            send("answer", measure())
        except Exception as error:
            send("error", f"{type(error).__name__}: {error}".split("\n")[0])
        theirs.close()

    process = forked(child, daemon=False)
    theirs.close()
    try:
        if not ours.poll(timeout):
            raise ChildFailed(f"took longer than {timeout:.0f} s")
        # of a process that was just forked here: of any class, and from nobody else
        kind, value = torch.load(io.BytesIO(ours.recv_bytes()), weights_only=False)
    except EOFError:
        raise ChildFailed("its process died") from None
    finally:
        ours.close()
        process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()
    if kind == "error":
        raise ChildFailed(value)
    return value


@contextmanager
def restored(training: LiveTraining) -> Iterator[None]:
    """Everything that a training step changes is put back when the block ends, however it ends.

    Weights, buffers, gradients, the states of optimizer, scaler and schedule, modes, threads, random numbers; the
    training's clock forgets what was measured in the meantime.
    """
    model, put_back = training.model, training.place()
    kept = KeptState(model, training.optimizers, training.device.torch, room=2)
    gradients = [(p, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    threads = torch.get_num_threads()
    try:
        with kept_modes(model):
            yield
    finally:
        put_back()
        kept.put_back()  # after the schedule, which sets learning rates
        for parameter, gradient in gradients:
            parameter.grad = gradient
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        training.clock.start()


class Fetch:
    """Samples in the order of the loader's own sampler, one micro-batch after the other, for ever."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self._stream: Iterator[Any] = iter(())
        self.size = loader.batch_size or 1

    def indices(self) -> list[Any]:
        if self.iterable:
            return []
        while True:
            found = next(self._stream, None)
            if found is None:
                sampler = self.loader.batch_sampler if self.loader.batch_sampler is not None else self.loader.sampler
                self._stream = iter(sampler)
                found = next(self._stream)
            if self.loader.batch_sampler is None:
                return [found]
            if found:
                return list(found)

    def samples(self, indices: list[Any], count: int) -> Any:
        """The samples at these indices, or the next ``count`` of an iterable dataset.

        A list, but for a dataset that fetches many at once: what that gives is for its collate function alone.
        """
        if not self.iterable:
            many = getattr(self.dataset, "__getitems__", None)
            return many(indices) if many else [self.dataset[index] for index in indices]
        found = list(itertools.islice(self._stream, count))
        if len(found) < count:
            self._stream = iter(self.dataset)
            found += itertools.islice(self._stream, count - len(found))
        return found


def few(fetch: Fetch) -> int:
    """Reads a few samples, few enough to be read under a tracer, and says how many."""
    indices = fetch.indices()[:16]
    got = fetch.samples(indices, min(16, fetch.size))
    return len(got) if fetch.iterable else len(indices)


def fresh_loader(loader: DataLoader[Any]) -> DataLoader[Any]:
    """The same loader without its running iterator, and without pinning, which a forked child cannot do."""
    clone = copy(loader)
    clone.__dict__["_iterator"] = None
    clone.__dict__["pin_memory"] = False
    return clone


def nbytes(batch: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tensor_leaves(batch))


def cached_batches(training: LiveTraining, notes: list[str]) -> list[Any]:
    """The micro-batches of one optimizer step, on the host.

    They are made in a forked child where that works, so that neither the dataset nor the loader notices.
    A script's are those that it holds.
    """
    if not training.takes_batches:
        return list(training.next())
    if training.device.kind == "cpu":
        try:
            return list(in_child(lambda: _read(training)))
        except (ChildFailed, AttributeError, pickle.PickleError) as error:
            notes.append(f"the cached batch was read in the training process: {error}")
    generator = getattr(training.loader.loader, "generator", None)
    saved = generator.get_state() if generator is not None else None
    try:
        return _read(training)
    finally:
        if generator is not None and saved is not None:
            generator.set_state(saved)


def _read(training: LiveTraining) -> list[Any]:
    loader = training.loader.loader
    fetch = Fetch(loader)
    if fetch.iterable or loader.batch_sampler is None:
        clone = fresh_loader(loader)
        clone.__dict__.update(num_workers=0, prefetch_factor=None, persistent_workers=False, timeout=0)
        clone.__dict__["_DataLoader__multiprocessing_context"] = None
        return list(itertools.islice(iter(clone), training.lengths.accumulation))
    return [loader.collate_fn(fetch.samples(fetch.indices(), fetch.size)) for _ in range(training.lengths.accumulation)]


def doubled_batch(training: LiveTraining) -> Any | None:
    """A micro-batch of twice the samples, on the device.

    None where the dataset cannot be asked for any samples, a script's calls cannot be made with more of theirs, or the
    device may have no room.
    """
    if training.device.kind == "cuda":
        total = torch.cuda.get_device_properties(training.device.torch).total_memory
        if 2 * torch.cuda.max_memory_reserved(training.device.torch) > total:
            return None
    if not training.takes_batches:
        calls = training.next()[0]
        twice = [call.twice() for call in calls]
        return twice if all(two.samples == 2 * one.samples > 0 for one, two in zip(calls, twice, strict=True)) else None
    loader = training.loader.loader
    fetch = Fetch(loader)
    if fetch.iterable or loader.batch_sampler is None:
        return None

    def read() -> Any:
        return loader.collate_fn(fetch.samples(fetch.indices() + fetch.indices(), 2 * fetch.size))

    return training.to_device(in_child(read))
