"""The training loader of a setup, the order of its samples, and the length of a run over it.

The loader is the user's rebuilt faithfully, with the setup's options on top. The order is the same for a seed, whatever
the number of workers and whatever else draws numbers: a sampler without a generator of its own draws from torch's
global one, which dropout and augmentation draw from too, at moments that depend on the workers. So whatever has no
generator gets one, in the baseline as in every candidate."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate, default_convert

from autoopt.benchmark.seeding import kept_random_state, mix, random_state, seed_everything, set_random_state
from autoopt.benchmark.transfer import END
from autoopt.errors import WorkloadError
from autoopt.loading.validation import length_of
from autoopt.setup import Setup, Transform
from autoopt.workload import Workload

OPTIONS = (
    "num_workers",
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "timeout",
    "worker_init_fn",
    "collate_fn",
    "drop_last",
    "in_order",
    "pin_memory_device",
)
"""Options that ``Setup.with_loader`` may set. The batch size has a method of its own, and so has the dataset."""
_OF_VALIDATION = ("num_workers", "pin_memory", "prefetch_factor", "persistent_workers", "multiprocessing_context")


class Generators:
    """The generators of one loader, at a known state at the start of every epoch."""

    def __init__(self, seed: int, label: str) -> None:
        self._seed = (seed, label)
        self._own: dict[str, torch.Generator] = {}
        self._users: list[torch.Generator] = []
        self._shields: list[Shielded] = []

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

    def of_sampler(self, sampler: Any) -> Any:
        """A sampler of the user's own: given a generator where it has a place for one, shielded otherwise."""
        given = getattr(sampler, "generator", sampler)
        if given is None:
            sampler = copy.copy(sampler)
            sampler.generator = self.own("order")
        elif given is not sampler:
            self.users(given)
        else:
            sampler = Shielded(sampler, mix(*self._seed))
            self._shields.append(sampler)
        return sampler

    def start_epoch(self, epoch: int) -> None:
        for name, generator in self._own.items():
            generator.manual_seed(mix(*self._seed, name, epoch))
        for shield in self._shields:
            shield.epoch = epoch

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
        seed: of its private state in the first epoch.
        quiet: so many items in a row that draw nothing end the swap.
    """

    def __init__(self, sampler: Any, seed: int, quiet: float = 2) -> None:
        self.sampler = sampler
        self._seed, self._quiet = seed, quiet
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        with kept_random_state():
            seed_everything(mix(self._seed, self.epoch))
            items = iter(self.sampler)
            inside = random_state()
        quiet = 0
        while quiet < self._quiet:
            with kept_random_state():
                set_random_state(inside)
                item = next(items, END)
                before, inside = inside, random_state()
            if item is END:
                return
            quiet = quiet + 1 if _same(before, inside) else 0
            yield item
        yield from items


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return (
        torch.equal(one["torch"], other["torch"])
        and one["python"] == other["python"]
        and one["numpy"][2:] == other["numpy"][2:]
        and bool((one["numpy"][1] == other["numpy"][1]).all())
    )


@dataclass(frozen=True)
class InTurn:
    """``worker_init_fn`` of the user's, where there is one, then the plan's."""

    first: Any
    second: Any

    def __call__(self, worker: int) -> None:
        if self.first is not None:
            self.first(worker)
        self.second(worker)


@dataclass
class Loader:
    """A DataLoader with what an endless run needs to know of it."""

    loader: DataLoader[Any]
    generators: Generators
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def batch_size(self) -> int | None:
        return samples_in_batch(self.loader)


def samples_in_batch(loader: DataLoader[Any]) -> int | None:
    """Samples in a batch of a loader; None where its sampler does not tell."""
    return loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)


def training_loader(workload: Workload, setup: Setup, seed: int) -> Loader:
    """The loader that a setup trains with.

    Raises:
        WorkloadError: the setup asks for what this loader cannot be changed to.
    """
    data = users_loader(workload)
    dataset: Any = data.dataset
    for transform in setup.dataset:
        dataset = transform(dataset)
    _check_options(setup.loader, OPTIONS, "a DataLoader option {!r}")
    made = rebuilt(data, dataset, setup.loader, setup.batch.size, seed, "train")
    for order in setup.sampler:
        reorder(made.loader, order)
    for around in setup.collate:
        recollate(made.loader, around)
    return made


def recollate(loader: DataLoader[Any], change: Transform) -> None:
    """Puts ``collate -> collate`` around the collate function of a loader that was not read yet."""
    loader.collate_fn = change(loader.collate_fn)


def collate_name(collate: Any) -> str:
    """What makes batches of samples, as its module and name; of an object, its class's."""
    named = collate if hasattr(collate, "__qualname__") else type(collate)
    return f"{named.__module__}.{named.__qualname__}"


def reorder(loader: DataLoader[Any], change: Callable[..., Any]) -> None:
    """Puts ``(sampler, dataset, batch_size) -> sampler`` around the order of a loader that was not read yet.

    Raises:
        ValueError: the loader has no order of single samples.
    """
    batches: Any = loader.batch_sampler
    if type(batches) is not BatchSampler or isinstance(loader.dataset, IterableDataset):
        raise ValueError(
            "this loader makes its batches in a way of its own: its samples cannot be put in another order"
        )
    sampler = change(batches.sampler, loader.dataset, batches.batch_size)
    # torch refuses to set it on a loader; the one that is there may be shared with the user's own
    loader.__dict__["batch_sampler"] = BatchSampler(sampler, batches.batch_size, batches.drop_last)


def validation_loader(workload: Workload, setup: Setup, seed: int) -> Loader | None:
    """The loader that a setup evaluates with: the same samples in the same order, its workers as in training."""
    data = workload.valid_data
    if data is None:
        return None
    _check_options(
        setup.evaluation, ("batch_size", "dataset", *_OF_VALIDATION), "an option {!r} of the validation loader"
    )
    options = {name: value for name, value in setup.loader.items() if name in _OF_VALIDATION} | dict(setup.evaluation)
    batch_size, wrap = options.pop("batch_size", None), options.pop("dataset", lambda dataset: dataset)
    loader = as_loader(data, users_loader(workload).batch_size or 32, shuffle=False)
    return rebuilt(loader, wrap(loader.dataset), options, batch_size, seed, "valid")


def _check_options(given: Mapping[str, Any], known: Iterable[str], what: str) -> None:
    for name in sorted(set(given) - set(known)):
        raise WorkloadError(f"{what.format(name)} cannot be set by a plan", hint=f"there are: {', '.join(known)}")


def as_loader(data: Any, batch_size: int | None, *, shuffle: bool) -> DataLoader[Any]:
    """A loader as the user gave it, or the plain one that reads a Dataset in such batches."""
    if isinstance(data, DataLoader):
        return data
    return DataLoader(data, batch_size, shuffle=shuffle and not isinstance(data, IterableDataset))


def users_loader(workload: Workload) -> DataLoader[Any]:
    """The loader of the training data before any change."""
    return as_loader(workload.train_data, workload.batch_size, shuffle=True)


def rebuilt(
    data: DataLoader[Any], dataset: Any, options: Mapping[str, Any], size: int | None, seed: int, label: str
) -> Loader:
    """A DataLoader like the user's, with another dataset, options or batch size.

    Args:
        data: the user's loader; left as it is.
        dataset: what the new one reads, the user's own or a transformed one.
        size: another batch size; None keeps it.

    Raises:
        WorkloadError: the batch size of a custom batch sampler or a subclass cannot be changed.
    """
    generators = Generators(seed, label)
    users = {name: getattr(data, name) for name in OPTIONS if hasattr(data, name)}
    if users.get("collate_fn") is (default_collate if data._auto_collation else default_convert):
        del users["collate_fn"]  # so that it follows the batch size, as torch has it
    if data.batch_size is None:
        users["drop_last"] = False
    merged = {**users, **options}
    if "worker_init_fn" in options:
        merged["worker_init_fn"] = InTurn(data.worker_init_fn, options["worker_init_fn"])
    changed = "num_workers" in options and options["num_workers"] != data.num_workers
    warnings = check_workers(dataset, users, merged["num_workers"], changed=changed)
    generator = generators.users(data.generator) if data.generator is not None else generators.own("workers")
    if type(data) is not DataLoader:  # its own __iter__ and __init__ are the user's, so that it is copied
        if size is not None and size != data.batch_size:
            raise WorkloadError(
                f"train_data is a {type(data).__name__}, a DataLoader of its own kind; "
                "its batch size cannot be changed",
                hint="give a torch.utils.data.DataLoader or the Dataset",
            )
        new = {**consistent(merged), "dataset": dataset, "generator": generator, "_iterator": None}
        if not new.get("num_workers"):
            new |= {"prefetch_factor": None, "persistent_workers": False, "timeout": 0}
        elif new.get("prefetch_factor") is None:
            new["prefetch_factor"] = 2
        if "multiprocessing_context" in new:
            new["_DataLoader__multiprocessing_context"] = new.pop("multiprocessing_context")
        copied = copy.copy(data)
        copied.__dict__.update(new)  # torch refuses to set some of them on a live loader
        return Loader(copied, generators, warnings)
    how = _sampling(data, dataset, size, merged, generators)
    arguments = {**consistent(merged), **how}
    if "batch_sampler" in how:
        arguments.pop("drop_last", None)
    return Loader(DataLoader(dataset, generator=generator, **arguments), generators, warnings)


def _sampling(
    data: DataLoader[Any], dataset: Any, size: int | None, merged: dict[str, Any], generators: Generators
) -> dict[str, Any]:
    """``batch_size`` with ``sampler``, or ``batch_sampler``, as the user's loader has it."""
    if isinstance(data.dataset, IterableDataset):
        return {"batch_size": data.batch_size if size is None else _sized(data, size)}
    if data.batch_size is not None or data.batch_sampler is None:
        sampler = _sampler(data.sampler, dataset, data.dataset, generators)
        return {"batch_size": data.batch_size if size is None else _sized(data, size), "sampler": sampler}
    given: Any = data.batch_sampler
    if type(given) is BatchSampler:
        sampler = _sampler(given.sampler, dataset, data.dataset, generators)
        drop = merged["drop_last"] if merged["drop_last"] is not data.drop_last else given.drop_last
        return {"batch_sampler": BatchSampler(sampler, size or given.batch_size, drop)}
    if size is not None and size != getattr(given, "batch_size", None):
        raise WorkloadError(
            f"the loader has a batch sampler of its own ({type(given).__name__}), "
            f"which decides the batch size; it cannot be changed to {size}",
            hint="give batch_size and a sampler instead, or leave the batch strategy out with --skip batch",
        )
    return {"batch_sampler": generators.of_sampler(given)}


def _sized(data: DataLoader[Any], size: int) -> int:
    if data.batch_size is None:
        raise WorkloadError(
            f"the loader does not batch (batch_size=None); its batch cannot be changed to {size}",
            hint="each sample of the dataset is a batch already",
        )
    return size


def _sampler(sampler: Any, dataset: Any, old: Any, generators: Generators) -> Any:
    kind = type(sampler)
    if kind is SequentialSampler:
        return SequentialSampler(dataset if sampler.data_source is old else sampler.data_source)
    if kind is RandomSampler:
        given = sampler.generator
        return RandomSampler(
            dataset if sampler.data_source is old else sampler.data_source,
            replacement=sampler.replacement,
            num_samples=sampler._num_samples,
            generator=generators.users(given) if given is not None else generators.own("order"),
        )
    return generators.of_sampler(sampler)


def consistent(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those that torch refuses together."""
    options = {name: value for name, value in options.items() if not (name == "pin_memory_device" and not value)}
    if not options.get("num_workers"):
        for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
            options.pop(name, None)
    return options


def check_workers(dataset: Any, options: Mapping[str, Any], workers: int, *, changed: bool) -> tuple[str, ...]:
    """Two workers on an IterableDataset that does not share the work out yield everything twice.

    Raises:
        WorkloadError: a plan asks for just that.
    """
    if not isinstance(dataset, IterableDataset) or workers < 2 or shares_work(dataset, options.get("worker_init_fn")):
        return ()
    said = (
        f"{type(dataset).__name__} is an IterableDataset that does not ask for get_worker_info(): "
        f"{workers} workers yield every sample {workers} times"
    )
    if changed:
        raise WorkloadError(said, hint="share the samples out in __iter__ by torch.utils.data.get_worker_info()")
    return (said,)


def shares_work(dataset: Any, worker_init_fn: Any = None) -> bool:
    """Whether an IterableDataset shares its samples out between workers, as far as its source reports."""
    if worker_init_fn is not None:
        return True
    seen: list[Any] = [dataset]
    for _ in range(8):  # datasets that wrap another one
        item = seen[-1]
        if any("get_worker_info" in text or "split_by_worker" in text for text in _sources(type(item))):
            return True
        inner = next((v for v in vars(item).values() if isinstance(v, IterableDataset)), None)
        if inner is None or any(inner is known for known in seen):
            return False
        seen.append(inner)
    return False


def _sources(kind: type) -> Iterator[str]:
    """The source of a class and its bases, and of the functions next to them that their methods name."""
    for cls in kind.__mro__:
        if cls.__module__.startswith(("torch.utils.data", "builtins", "typing")):
            continue
        module = sys.modules.get(cls.__module__)
        methods = [value for value in vars(cls).values() if inspect.isfunction(value)]
        helpers = {name for method in methods for name in method.__code__.co_names}
        called = [value for name in helpers if inspect.isfunction(value := getattr(module, name, None))]
        for source in (cls, *called):
            with contextlib.suppress(OSError, TypeError):
                yield inspect.getsource(source)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Lengths:
    """Optimizer steps.

    Attributes:
        user_total: of the planned run with the user's own batch.
        user_per_epoch: the same of an epoch; None where not known.
        total, per_epoch: with the setup's batch.
        ratio: the user's steps that one of the setup's stands for.
        evaluate_every: the setup's steps between evaluations.
    """

    user_total: int
    user_per_epoch: int | None
    total: int
    per_epoch: int | None
    ratio: float
    evaluate_every: int
    accumulation: int


def lengths(workload: Workload, setup: Setup, loader: Loader) -> Lengths:
    """The lengths of a run of a workload under a setup; the same samples, whatever the batch."""
    accumulation = setup.batch.accumulation or workload.accumulation
    user_per_epoch = _per_epoch(length_of(users_loader(workload)), workload.accumulation)
    per_epoch = _per_epoch(length_of(loader), accumulation)
    user_size = user_batch_size(workload)
    ratio = 1.0
    if setup.batch.size is not None or setup.batch.accumulation is not None:
        if user_per_epoch and per_epoch:
            ratio = user_per_epoch / per_epoch
        elif user_size:
            ratio = (loader.batch_size or user_size) * accumulation / (user_size * workload.accumulation)
    if workload.max_steps is not None:
        user_total = workload.max_steps
    else:
        user_total = max(1, ceil((workload.max_epochs or 1) * (user_per_epoch or 1)))
    every = setup.cadence.evaluate_every
    if every is None:
        users = workload.evaluate_every or user_per_epoch or max(1, user_total // 10)
        every = max(1, round(users / ratio))
    total = max(1, ceil(user_total / ratio - 1e-9))
    return Lengths(user_total, user_per_epoch, total, per_epoch, ratio, every, accumulation)


def user_batch_size(workload: Workload) -> int | None:
    """Samples in a micro-batch of the user's, where it is known."""
    data = users_loader(workload)
    found = samples_in_batch(data)
    if found is None and data.batch_sampler is not None:  # a sampler of the user's own, which does not tell
        return workload.batch_size
    return found


def _per_epoch(batches: int | None, accumulation: int) -> int | None:
    return None if batches is None else max(1, ceil(batches / accumulation))
