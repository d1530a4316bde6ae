"""Batches of a training, read without it noticing, and measuring in isolation.

What a step changes is put back, and what cannot be put back runs in a forked child."""

from __future__ import annotations

import copy
import io
import itertools
import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.data import DataLoader, IterableDataset

from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.seeding import random_state, set_random_state
from autoopt.records import JsonDict

_HALF = 0.5
"""A device with more of its memory taken is not asked for twice the batch."""
_SECONDS = 120.0
"""Reading a batch may take this long before it counts as hung."""


class ChildFailed(Exception):  # noqa: N818
    """The forked measurement raised, died or took too long; the message says which."""


def can_fork() -> bool:
    return "fork" in multiprocessing.get_all_start_methods()


def in_child(measure: Callable[[], JsonDict], timeout: float) -> JsonDict:
    """Runs ``measure`` in a forked child with one compute thread and hands back its document.

    Raises:
        ChildFailed: it raised, died, or took longer than ``timeout`` seconds; it is gone then.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(measure, theirs), daemon=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork next to threads, as a DataLoader does it
        process.start()
    theirs.close()
    try:
        return _answer(ours, timeout)
    finally:
        ours.close()
        process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()


def _answer(connection: Connection, timeout: float) -> JsonDict:
    if not connection.poll(timeout):
        raise ChildFailed(f"took longer than {timeout:.0f} s")
    try:
        kind, value = connection.recv()
    except EOFError:
        raise ChildFailed("its process died") from None
    if kind == "error":
        raise ChildFailed(value)
    return dict(value)


def _child(measure: Callable[[], JsonDict], connection: Connection) -> None:
    torch.set_num_threads(1)  # OpenMP's threads do not survive a fork; a loader's worker does the same
    try:
        answer: tuple[str, Any] = ("answer", measure())
    except Exception as error:
        answer = ("error", f"{type(error).__name__}: {error}".split("\n")[0])
    connection.send(answer)
    connection.close()


@contextmanager
def restored(training: LiveTraining) -> Iterator[None]:
    """Everything that a training step changes is put back when the block ends, however it ends.

    Weights, buffers, gradients, the states of optimizer, scaler and schedule, modes, threads, random numbers; the
    training's clock forgets what was measured in the meantime.
    """
    saved = _Saved(training)
    try:
        yield
    finally:
        saved.put_back()


class _Saved:
    def __init__(self, training: LiveTraining) -> None:
        self.training = training
        model, optimizer = training.model, training.optimizer
        aside = _aside(training)
        self.tensors = [(tensor, aside(tensor)) for tensor in _tensors(model)]
        self.gradients = [(p, None if p.grad is None else aside(p.grad)) for p in model.parameters()]
        self.modes = [(module, module.training) for module in model.modules()]
        leaves, structure = tree_flatten(optimizer.state_dict())
        kept = [aside(leaf) if isinstance(leaf, torch.Tensor) else copy.deepcopy(leaf) for leaf in leaves]
        self.optimizer = tree_unflatten(kept, structure)
        self.scaler = copy.deepcopy(training.scaler.state_dict()) if training.scaler else None
        self.schedule = copy.deepcopy(training.schedule.state_dict())
        self.rates = [group["lr"] for group in optimizer.param_groups]
        self.threads = torch.get_num_threads()
        self.random = random_state()

    def put_back(self) -> None:
        training = self.training
        with torch.no_grad():
            for tensor, value in self.tensors:
                tensor.copy_(value)
        for parameter, gradient in self.gradients:
            parameter.grad = None if gradient is None else gradient.to(parameter.device)
        for module, mode in self.modes:
            module.training = mode
        training.optimizer.load_state_dict(self.optimizer)
        training.schedule.load_state_dict(self.schedule)
        for group, rate in zip(training.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate
        if training.scaler is not None and self.scaler is not None:
            training.scaler.load_state_dict(self.scaler)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        set_random_state(self.random)
        training.clock.start()


def _aside(training: LiveTraining) -> Callable[[torch.Tensor], torch.Tensor]:
    """Where copies are kept: on the device while it has twice the room for them, else on the host."""
    if training.device.kind != "cuda":
        return lambda tensor: tensor.detach().clone()
    state = [leaf for leaf in tree_leaves(training.optimizer.state_dict()) if isinstance(leaf, torch.Tensor)]
    gradients = [p.grad for p in training.model.parameters() if p.grad is not None]
    size = sum(t.numel() * t.element_size() for t in [*_tensors(training.model), *gradients, *state])
    if 2 * size < torch.cuda.mem_get_info(training.device.torch)[0]:
        return lambda tensor: tensor.detach().clone()
    return lambda tensor: tensor.detach().to("cpu", copy=True)


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


class Fetch:
    """Samples in the order of the loader's own sampler, one micro-batch after the other, for ever."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.dataset = loader.dataset
        self.iterable = isinstance(loader.dataset, IterableDataset)
        self._stream: Iterator[Any] = iter(())
        self.size = loader.batch_size or 1

    def indices(self) -> list[Any]:
        """The next micro-batch's indices; empty for an iterable dataset."""
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
    clone = copy.copy(loader)
    clone.__dict__["_iterator"] = None
    clone.__dict__["pin_memory"] = False
    return clone


def nbytes(batch: Any) -> int:
    """Bytes of all tensors in a batch, however it is nested."""
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor))


def cached_batches(training: LiveTraining, notes: list[str]) -> list[Any]:
    """The micro-batches of one optimizer step, on the host.

    They are made in a forked child where that works, so that neither the dataset nor the loader notices.
    A script's are those that it holds.
    """
    if not training.takes_batches:
        return list(training.next())
    if can_fork() and training.device.kind == "cpu":
        try:
            packed = in_child(lambda: {"batches": _packed(_read(training))}, timeout=_SECONDS)["batches"]
            return _unpacked(packed)
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

    None where the dataset cannot be asked for any samples, or the device may have no room.
    """
    if not training.takes_batches:
        return None  # what a script makes of a batch is its own
    loader = training.loader.loader
    fetch = Fetch(loader)
    if fetch.iterable or loader.batch_sampler is None:
        return None
    if training.device.kind == "cuda":
        total = torch.cuda.get_device_properties(training.device.torch).total_memory
        if torch.cuda.max_memory_reserved(training.device.torch) > _HALF * total:
            return None

    def read() -> JsonDict:
        indices = fetch.indices() + fetch.indices()
        return {"batches": _packed([loader.collate_fn(fetch.samples(indices, 2 * fetch.size))])}

    return training.to_device(_unpacked(in_child(read, timeout=_SECONDS)["batches"])[0])


def _packed(batches: list[Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(batches, buffer)
    return buffer.getvalue()


def _unpacked(packed: bytes) -> list[Any]:
    """Batches of a child that this process has just forked itself: of any class, and from nobody else."""
    return list(torch.load(io.BytesIO(packed), weights_only=False))
