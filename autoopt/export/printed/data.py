"""The loaders of an exported script, and the way of their batches to the device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_convert

from autoopt.benchmark.loader import InTurn, Loader, as_loader, rebuilt
from autoopt.benchmark.transfer import END, CopyAhead, by_itself, mapped
from autoopt.export.printed import plan

Generators = dict[str, torch.Generator]


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with every tensor on the device, however they are nested."""
    return mapped(
        batch,
        lambda tensor: tensor.to(device, non_blocking=plan.non_blocking),
        lambda whole: by_itself(whole, device, non_blocking=plan.non_blocking),
    )


def moved(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The batches, each on the device when it is asked for."""
    if plan.prefetch and device.type == "cuda":
        yield from copied_ahead(batches, device)
        return
    for batch in batches:
        yield to_device(batch, device)


def copied_ahead(batches: Iterable[Any], device: torch.device) -> Iterator[Any]:
    """The batches on the device, later ones copied while it computes on this one."""
    ahead, source = CopyAhead(device, lambda batch: to_device(batch, device), plan.prefetch), iter(batches)
    while True:
        ahead.fill(source, 1)
        batch = ahead.take()
        if batch is END:
            return
        yield batch
        ahead.fill(source)  # the step is under way


def groups(batches: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Micro-batches of one optimizer step at a time; the last of an epoch may have fewer."""
    batches = iter(batches)
    while group := list(islice(batches, size)):
        yield group


def loader_like(theirs: DataLoader[Any], dataset: Any, own: Generators, **changes: Any) -> DataLoader[Any]:
    """Your DataLoader once more, with the options that changed.

    What draws the order of samples and had no generator gets one in `own`: the order
    then depends on the seed alone, not on the workers or on what else draws numbers.
    """
    if type(theirs) is not DataLoader:
        return theirs  # a class of your own makes its own loader
    if plan.starts_workers and "worker_init_fn" in changes:
        changes["worker_init_fn"] = InTurn(theirs.worker_init_fn, changes["worker_init_fn"])
    kept: tuple[str, ...] = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor")
    kept += ("persistent_workers", "multiprocessing_context")
    options: dict[str, Any] = {name: getattr(theirs, name) for name in kept} | changes
    if not options["num_workers"]:  # these are for workers alone
        for name in ("timeout", "prefetch_factor", "persistent_workers"):
            options.pop(name)
        options.pop("multiprocessing_context")
    if theirs._auto_collation or theirs.collate_fn is not default_convert:
        options.setdefault("collate_fn", theirs.collate_fn)
    if theirs.generator is None:
        own["workers"] = torch.Generator()
    options["generator"] = own.get("workers", theirs.generator)
    if isinstance(dataset, IterableDataset):
        options.setdefault("batch_size", theirs.batch_size)
        options.setdefault("drop_last", theirs.drop_last)
        return DataLoader(dataset, **options)
    read: Any = theirs.dataset
    sampler: Any = getattr(theirs.batch_sampler, "sampler", theirs.sampler)
    if type(sampler) is RandomSampler:
        if sampler.generator is None:
            own["order"] = torch.Generator()
        sampler = RandomSampler(
            dataset if sampler.data_source is read else sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=own.get("order", sampler.generator),
        )
    elif type(sampler) is SequentialSampler:
        sampler = SequentialSampler(dataset)
    batches: Any = theirs.batch_sampler
    if theirs.batch_size is None and batches is not None:
        size = options.pop("batch_size", batches.batch_size)
        drop_last = options.pop("drop_last", batches.drop_last)
        return DataLoader(dataset, batch_sampler=BatchSampler(sampler, size, drop_last), **options)
    options.setdefault("batch_size", theirs.batch_size)
    if theirs.batch_size is not None:
        options.setdefault("drop_last", theirs.drop_last)
    return DataLoader(dataset, sampler=sampler, **options)


def training_loader(workload: Any) -> tuple[DataLoader[Any], Generators]:
    """The loader that was measured, and the generators that every epoch seeds anew."""
    own: Generators = {}
    dataset = workload.train_data.dataset if plan.own_loader else workload.train_data
    for change in plan.dataset:
        dataset = change(dataset)
    if plan.own_loader:
        loader = loader_like(workload.train_data, dataset, own, batch_size=plan.batch_size, **plan.loader_options)
        return loader, own
    own["workers"] = torch.Generator()
    size = workload.batch_size if plan.batch_size is None else plan.batch_size
    if plan.map_style:
        # The order of samples has a generator of its own, so that it is the same for any
        # number of workers and whatever else draws random numbers.
        own["order"] = torch.Generator()
        sampler = RandomSampler(dataset, generator=own["order"])
        return DataLoader(
            dataset, batch_size=size, sampler=sampler, generator=own["workers"], **plan.loader_options
        ), own
    return DataLoader(dataset, batch_size=size, generator=own["workers"], **plan.loader_options), own


def validation_loader(workload: Any) -> tuple[DataLoader[Any], Generators]:
    """The same for the validation data, in its own order."""
    own: Generators = {}
    data = workload.valid_data
    dataset = data.dataset if isinstance(data, DataLoader) else data
    for change in plan.valid_dataset:
        dataset = change(dataset)
    if isinstance(data, DataLoader):
        return loader_like(data, dataset, own, **plan.valid_options), own
    own["workers"] = torch.Generator()
    if plan.valid_batch_size is not None:
        return DataLoader(dataset, generator=own["workers"], **plan.valid_options), own
    size = workload.batch_size or 32
    if plan.own_loader:
        size = getattr(workload.train_data, "batch_size", None) or size
    return DataLoader(dataset, batch_size=size, generator=own["workers"], **plan.valid_options), own


def odd_training_loader(workload: Any, seed: int) -> Loader:
    """The loader that was measured; your own sampler is kept."""
    dataset = workload.train_data.dataset
    for change in plan.dataset:
        dataset = change(dataset)
    options = dict(**plan.loader_options)
    return rebuilt(workload.train_data, dataset, options, plan.batch_size, seed, "train")


def odd_validation_loader(workload: Any, seed: int) -> Loader:
    """The same for the validation data, in its own order."""
    options = dict(**plan.valid_options)
    loader = as_loader(workload.valid_data, getattr(workload.train_data, "batch_size", None) or 32, shuffle=False)
    size, dataset = options.pop("batch_size", None), loader.dataset
    for change in plan.valid_dataset:
        dataset = change(dataset)
    return rebuilt(loader, dataset, options, size, seed, "valid")


class OnDevice:
    """Batches on the device, as often as they are read."""

    def __init__(self, loader: DataLoader[Any], device: torch.device, start: Callable[[int], None]) -> None:
        self.loader, self.device, self.start = loader, device, start

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.start(0)
        for batch in self.loader:
            yield to_device(batch, self.device)
