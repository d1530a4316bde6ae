"""Facts of a workload that strategies may know, found in the live objects."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping
from math import prod
from typing import Any

import psutil
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate

from autoopt.benchmark.compiling import repeated_blocks
from autoopt.benchmark.contents import bytes_of, leaves, shape_of, tensors, unmoved, unpinned
from autoopt.benchmark.lengths import user_batch_size
from autoopt.benchmark.live import LiveTraining
from autoopt.benchmark.losses import is_criterion
from autoopt.benchmark.samples import Samples
from autoopt.records import JsonDict
from autoopt.records.facts import DatasetFacts, LoaderFacts, ModelFacts, OptimizerFacts, TensorFacts, WorkloadFacts
from autoopt.workload import Workload


def workload_facts(training: LiveTraining, spec: str) -> WorkloadFacts:
    """The facts of an assembled workload. Reads a few samples; training is not disturbed.

    Args:
        training: assembled under any setup; the facts are those of the user's own way.
        spec: the import string.
    """
    workload = training.workload
    samples = Samples(workload)
    batch = tuple(_tensor_facts(path, tensor, samples.scale) for path, tensor in tensors(samples.batch))
    model = model_facts(training.model)
    target = workload.target
    return WorkloadFacts(
        spec=spec,
        name=workload.name or _named(spec) or type(workload.model).__name__,
        parameters=model.parameters,
        train_samples=_length(_dataset(workload)),
        batch_size=user_batch_size(workload),
        max_steps=training.lengths.user_total,
        steps_per_epoch=training.lengths.user_per_epoch,
        dataset=_dataset_facts(workload, samples),
        loader=_loader_facts(workload),
        model=model,
        optimizer=_optimizer_facts(training),
        batch=batch,
        batch_bytes=sum(each.bytes for each in batch),
        unpinned=unpinned(samples.batch),
        unmoved=unmoved(samples.batch),
        beside_tensors=next(
            (type(leaf).__name__ for _, leaf in leaves(samples.batch) if not isinstance(leaf, torch.Tensor)), ""
        ),
        static_shapes=samples.static_shapes(),
        accumulation=workload.accumulation,
        valid_samples=_length(_of_loader(workload.valid_data)),
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
        available_ram_bytes=psutil.virtual_memory().available,
    )


def _named(spec: str) -> str:
    return spec.rpartition(":")[0].rpartition("/")[2].removesuffix(".py")


def model_facts(model: nn.Module) -> ModelFacts:
    """The model's parameters, kinds of modules and where its class stands."""
    unique = {id(p): p for p in model.parameters()}.values()
    known = [p for p in unique if not isinstance(p, nn.parameter.UninitializedParameter)]
    modules = Counter(type(module).__name__ for module in model.modules())
    file, line = _source(type(model).forward if type(model).__module__.partition(".")[0] != "torch" else None)
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


def _dataset(workload: Workload) -> Any:
    return _of_loader(workload.train_data)


def _of_loader(data: Any) -> Any:
    return data.dataset if isinstance(data, DataLoader) else data


def _dataset_facts(workload: Workload, samples: Samples) -> DatasetFacts:
    dataset = _dataset(workload)
    iterable = isinstance(dataset, IterableDataset)
    inner = dataset
    while type(inner).__module__.startswith("torch.") and hasattr(inner, "dataset"):
        inner = inner.dataset  # a Subset, as random_split makes
    method = getattr(type(inner), "__iter__" if iterable else "__getitem__", None)
    file, line = _source(method) if not type(inner).__module__.startswith("torch.") else (None, None)
    return DatasetFacts(
        type=type(inner).__name__,
        map_style=not iterable,
        samples=_length(dataset),
        deterministic=samples.deterministic(),
        sample_bytes=samples.sample_bytes(),
        has_getitems=hasattr(dataset, "__getitems__"),
        picklable=_picklable(dataset),
        file=file,
        line=line,
    )


def _picklable(dataset: Any) -> bool | None:
    """Whether it can go to a worker that is not forked, told without pickling its data."""
    import pickle

    class Probe(pickle.Pickler):
        def persistent_id(self, item: Any) -> Any:
            size = getattr(item, "nbytes", 0)
            return "big" if isinstance(size, int) and size > 1 << 16 else None

    class Sink:
        written = 0

        def write(self, data: Any) -> int:
            self.written += len(data)
            if self.written > 1 << 24:
                raise OverflowError
            return len(data)

    try:
        Probe(Sink()).dump(dataset)
    except OverflowError:
        return None
    except Exception:
        return False
    return True


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
        own_loader=True,
        own_class="" if type(data) is DataLoader else type(data).__name__,
    )


def _optimizer_facts(training: LiveTraining) -> OptimizerFacts:
    optimizer = training.users_optimizer or training.optimizer
    return OptimizerFacts(
        type=type(optimizer).__name__,
        module=type(optimizer).__module__,
        options=plain_options(optimizer.defaults),
        groups=len(optimizer.param_groups),
        has_scheduler=training.workload.scheduler is not None,
    )


def plain_options(options: Mapping[str, Any]) -> JsonDict:
    """Those options that a document can hold: numbers, texts, None and lists of numbers."""
    return {key: plain for key, value in options.items() if (plain := _plain(value)) is not _NOT_PLAIN}


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return float(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, (int, float)) for item in value):
        return list(value)
    return _NOT_PLAIN


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


def _length(data: Any) -> int | None:
    try:
        return len(data) if data is not None else None
    except (TypeError, NotImplementedError):
        return None


def _source(function: Any) -> tuple[str | None, int | None]:
    try:
        function = inspect.unwrap(function)
        code = getattr(function, "__code__", None) or getattr(function.__call__, "__code__", None)
        if code is not None:
            return code.co_filename, code.co_firstlineno
        return inspect.getsourcefile(function), inspect.getsourcelines(function)[1]
    except (OSError, TypeError, AttributeError):
        return None, None


def inspected(live: Any, names: list[str]) -> dict[str, JsonDict]:
    """The findings of each strategy's ``inspect``; one that crashes says so under ``error``."""
    found: dict[str, JsonDict] = {}
    for name in names:
        try:
            found[name] = dict(live.registry[name].inspect(live))
        except Exception as error:  # a plugin's crash is a result, not the end
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    return found
