"""Facts of a workload that strategies may know, found in the live objects."""

from __future__ import annotations

import inspect
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import prod
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate

from autoopt.benchmark.compiling import repeated_blocks
from autoopt.benchmark.contents import array_of, bytes_of, leaves, shape_of, tensors, unreached, users_dataset
from autoopt.benchmark.cputime import memory
from autoopt.benchmark.fingerprint import same_samples
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.loader import user_batch_size, users_loader
from autoopt.benchmark.losses import is_criterion
from autoopt.benchmark.seeding import kept_random_state
from autoopt.benchmark.whatif import without_graphs
from autoopt.loading.validation import length_of
from autoopt.records import JsonDict
from autoopt.records.facts import DatasetFacts, LoaderFacts, ModelFacts, OptimizerFacts, TensorFacts, WorkloadFacts
from autoopt.workload import Workload

_HANDFUL, _PATIENCE = 4, 2.0
"""Samples that are read however slow they are, and seconds after which no more are."""


class Samples:
    """Reads a batch of the user's size from the front of the dataset.

    ``dataset``: that they are of; ``items``: the samples; ``batch``: collated as the user's loader does; None where it
    cannot be read next to the training.
    """

    def __init__(self, workload: Workload) -> None:
        self._loader = users_loader(workload)
        self.dataset: Any = self._loader.dataset
        self._size = user_batch_size(workload)
        self._batches = self._loader.batch_sampler is not None
        with kept_random_state():
            self.items = self._read()
        self.batch: Any = None
        if self.items:
            with suppress(Exception):  # whatever a collate function insists on, training shows it
                self.batch = self._collated(self.items if self._batches else self.items[0])

    def _read(self) -> list[Any]:
        self._wanted = count = self._size or (_HANDFUL if self._batches else 1)
        if isinstance(self.dataset, IterableDataset):
            iterator: Any = iter(self.dataset)
            if iterator is self.dataset:
                return []  # it can be read once: what is taken here would be missing there
            return self._in_time(itertools.islice(self.dataset, count))
        try:
            self._wanted = count = min(count, len(self.dataset))
            return self._in_time(self.dataset[index] for index in range(count))
        except Exception:
            return []  # a dataset without a length, or whose keys come from its own sampler: what it raises at others

    def _in_time(self, items: Iterable[Any]) -> list[Any]:
        """The items, or as many as a slow dataset gives in a few seconds, a handful at least."""
        began, found = perf_counter(), []
        for item in items:
            found.append(item)
            if len(found) >= _HANDFUL and perf_counter() - began > _PATIENCE:
                break
        return found

    @property
    def scale(self) -> float:
        """Samples in a batch of the user's over those read of a slow dataset."""
        return self._wanted / len(self.items) if self._batches and self.items else 1.0

    def _collated(self, items: Any) -> Any:
        with kept_random_state():
            return self._loader.collate_fn(items)

    def deterministic(self) -> bool | None:
        """Whether the same index gives the same sample under other random numbers; None where that is unknown."""
        return same_samples(self.dataset) if self.items else None

    def static_shapes(self) -> bool | None:
        """Whether batches have one shape, apart from how many samples they hold; None where not known."""
        if len(self.items) < 4 or not self._batches:
            return None
        half = len(self.items) // 2
        try:
            one, other = self._collated(self.items[:half]), self._collated(self.items[half : 2 * half])
        except Exception:  # a collate function that insists on its own batch
            return None
        return [shape_of(t) for _, t in tensors(one)] == [shape_of(t) for _, t in tensors(other)]


def size_of(sample: Any) -> int:
    """Bytes of a sample's tensors, arrays, and byte strings; whatever else it holds counts as 8."""
    total = 0
    for _, leaf in leaves(sample):
        array = array_of(leaf)
        if isinstance(leaf, torch.Tensor):
            total += bytes_of(leaf)
        elif isinstance(leaf, (bytes, bytearray, str)):
            total += len(leaf)
        else:
            total += 8 if array is None else int(array.nbytes)
    return total


def workload_facts(training: LiveTraining, spec: str) -> WorkloadFacts:
    """The facts of a workload as its user has it. Reads a few samples; training is not disturbed."""
    workload = training.workload
    samples = Samples(workload)
    batch = tuple(_tensor_facts(path, tensor, samples.scale) for path, tensor in tensors(samples.batch))
    model = model_facts(training.model)
    target, optimizer = workload.target, training.users_optimizer or training.optimizer
    valid = workload.valid_data
    return WorkloadFacts(
        spec=spec,
        name=workload.name
        or spec.rpartition(":")[0].rpartition("/")[2].removesuffix(".py")
        or type(workload.model).__name__,
        parameters=model.parameters,
        train_samples=length_of(samples.dataset),
        batch_size=user_batch_size(workload),
        max_steps=training.lengths.user_total,
        steps_per_epoch=training.lengths.user_per_epoch,
        dataset=_dataset_facts(samples),
        loader=_loader_facts(workload),
        model=model,
        optimizer=OptimizerFacts(
            type=type(optimizer).__name__,
            module=type(optimizer).__module__,
            options=plain_options(optimizer.defaults),
            groups=len(optimizer.param_groups),
            has_scheduler=workload.scheduler is not None,
        ),
        batch=batch,
        batch_bytes=sum(each.bytes for each in batch),
        unpinned=unreached(samples.batch, "pin_memory"),
        unmoved=unreached(samples.batch, "to"),
        beside_tensors=next(
            (type(leaf).__name__ for _, leaf in leaves(samples.batch) if not isinstance(leaf, torch.Tensor)), ""
        ),
        static_shapes=samples.static_shapes(),
        accumulation=workload.accumulation,
        valid_samples=length_of(valid.dataset if isinstance(valid, DataLoader) else valid),
        evaluate_every=workload.evaluate_every,
        loss_is_closure=not is_criterion(workload.loss),
        has_evaluate=workload.evaluate is not None,
        metric=target.metric if target is not None else None,
        mode=target.direction if target is not None else "max",
        target=target.value if target is not None else None,
        warnings=training.loader.warnings,
        precision=workload.setup.precision.dtype,
        clip_grad_norm=workload.clip_grad_norm,
        adapter=workload.adapter,
        available_ram_bytes=memory()[1],
    )


def model_facts(model: nn.Module) -> ModelFacts:
    """The model's parameters, kinds of modules and where its class stands."""
    unique = {id(p): p for p in model.parameters()}.values()
    known = [p for p in unique if not isinstance(p, nn.parameter.UninitializedParameter)]
    modules = Counter(type(module).__name__ for module in model.modules())
    forward = type(model).forward  # of several models that one script trains: none; of a subclass of torch's: torch's
    file, line = place_of(forward if forward.__module__.partition(".")[0] != "torch" else None)
    kinds = [type(module) for module in model.modules()]
    return ModelFacts(
        type=type(model).__name__,
        parameters=sum(p.numel() for p in known),
        trainable_parameters=sum(p.numel() for p in known if p.requires_grad),
        parameter_bytes=sum(p.numel() * p.element_size() for p in known),
        modules=dict(modules),
        repeated_blocks=tuple(repeated_blocks(model)),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in known})),
        has_conv2d=any(issubclass(kind, nn.Conv2d) for kind in kinds),
        has_batchnorm=any(issubclass(kind, nn.modules.batchnorm._BatchNorm) for kind in kinds),
        file=file,
        line=line,
    )


def _dataset_facts(samples: Samples) -> DatasetFacts:
    dataset = samples.dataset
    iterable = isinstance(dataset, IterableDataset)
    inner = users_dataset(dataset)
    method = getattr(type(inner), "__iter__" if iterable else "__getitem__", None)
    named = not type(inner).__module__.startswith("torch.") and not getattr(inner, "empty", False)
    file, line = place_of(method) if named else (None, None)
    return DatasetFacts(
        type=type(inner).__name__,
        map_style=not iterable,
        samples=length_of(dataset),
        deterministic=samples.deterministic(),
        sample_bytes=max(map(size_of, samples.items), default=None),
        has_getitems=hasattr(inner, "__getitems__"),
        file=file,
        line=line,
    )


def _loader_facts(workload: Workload) -> LoaderFacts:
    data = workload.train_data
    if not isinstance(data, DataLoader):
        return LoaderFacts(shuffle=None if isinstance(data, IterableDataset) else True)
    batch_sampler = data.batch_sampler
    custom_batches = data.batch_size is None and batch_sampler is not None and type(batch_sampler) is not BatchSampler
    sampler = getattr(batch_sampler, "sampler", data.sampler)
    iterable = isinstance(data.dataset, IterableDataset)
    context = data.multiprocessing_context
    return LoaderFacts(
        num_workers=data.num_workers,
        pin_memory=bool(data.pin_memory),
        prefetch_factor=data.prefetch_factor,
        persistent_workers=data.persistent_workers,
        multiprocessing_context=context.get_start_method() if context is not None else None,
        drop_last=bool(data.drop_last),
        shuffle=None if iterable else {RandomSampler: True, SequentialSampler: False}.get(type(sampler)),
        custom_sampler=not iterable and type(sampler) not in (RandomSampler, SequentialSampler),
        custom_batch_sampler=custom_batches,
        custom_collate=data._auto_collation and data.collate_fn is not default_collate,
        samples=None if iterable else length_of(sampler),
        own_loader=True,
        own_class="" if type(data) is DataLoader else type(data).__name__,
    )


def plain_options(options: Mapping[str, Any]) -> JsonDict:
    """Those options that a document can hold: numbers, texts, None and lists of numbers."""
    found: JsonDict = {}
    for key, value in options.items():
        if isinstance(value, torch.Tensor) and value.numel() == 1:
            found[key] = float(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            found[key] = value
        elif isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
            found[key] = list(value)
    return found


def _tensor_facts(path: str, tensor: torch.Tensor, scale: float) -> TensorFacts:
    """``scale``: a batch of the user's over what was read of a slow dataset."""
    shape = shape_of(tensor)
    if scale != 1.0 and shape:
        shape = (round(shape[0] * scale), *shape[1:])
    ragged = tensor.is_nested or tensor.layout != torch.strided
    return TensorFacts(
        path=path,
        shape=shape,
        dtype=str(tensor.dtype).removeprefix("torch."),
        bytes=round(bytes_of(tensor) * scale) if ragged else prod(shape) * tensor.element_size(),
    )


def place_of(function: Any) -> tuple[str | None, int | None]:
    """File and first line of a function, of what an object runs when it is called, or of a class; None: no source."""
    try:
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
        if code is not None and not inspect.isclass(function):
            return code.co_filename, code.co_firstlineno
        return inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError, AttributeError):
        return None, None


def inspected(live: Any, names: list[str], method: str = "inspect") -> dict[str, JsonDict]:
    """The findings of each strategy's ``inspect``, or ``inspect_steps``; one that crashes says so under ``error``."""
    found: dict[str, JsonDict] = {}
    without_graphs(live.training.model)
    for name in names:
        try:
            found[name] = dict(getattr(live.registry[name], method)(live))
        except Exception as error:  # a plugin's crash is a result, not the end
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found
