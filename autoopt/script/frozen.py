"""Frozen modules that training steps call, such as a teacher: found while a script is watched, kept in a trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from autoopt.benchmark.contents import tensors
from autoopt.benchmark.kept_outputs import KeptOutputs, columns_of, weights_of
from autoopt.benchmark.seeding import kept_random_state, next_to_training
from autoopt.records import JsonDict, Site
from autoopt.script.frames import called_name, calls_module, place_of, shown
from autoopt.script.loaders import Watcher
from autoopt.script.torch_hooks import Listening, TorchHooks

SAME = 1e-4
"""The largest difference that rounding explains, in units of the largest output."""
TIMED = 3
"""Calls of which the median is taken: one that was disturbed does not count."""
READINGS, READ = 12, 2
"""Of an index, among which few variants have all come, with few exceptions; and indices that are read."""


class FrozenModules(Watcher):
    """Modules without anything to learn that a training step calls on samples as the loader gave them.

    Args:
        hooks: whose session counts nothing of what is tried here.
    """

    def __init__(self, hooks: TorchHooks) -> None:
        self._hooks = hooks
        self._loader: Any = None
        self._batch: Any = None
        self._called: list[tuple[nn.Module, Site, Any, Any]] = []
        self._found: dict[tuple[str, int, str], tuple[Site, nn.Module, torch.Tensor]] = {}
        self._listening: list[Any] = []

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        self._loader, self._batch, self._called = loader, batch, []

    def root_found(self, model: nn.Module) -> None:
        for path, module in frozen_within(model):
            seen = partial(self._within, path)
            self._listening.append(module.register_forward_pre_hook(seen, with_kwargs=True))

    def _within(self, path: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._hooks.session.standing:
            self.frozen_called(module, args, kwargs, path)

    def frozen_called(self, module: nn.Module, args: Any, kwargs: Any, path: str = "") -> None:
        held = self._batch is not None and next(module.parameters(), None) is not None
        frame = calls_module() if held else None
        if frame is None:
            return
        place, name = place_of(frame), called_name(frame)
        if not name or place.file.startswith("/"):
            return
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        columns = [tensor for _, tensor in tensors(self._batch)]
        read = bool(given) and all(any(_same(value, column) for column in columns) for value in given)
        options: JsonDict = {"path": path} if read else {"path": path, "reason": "its input is made by your own lines"}
        site = Site(kind="frozen", **place.model_dump(), call=name, name=type(module).__name__, options=options)
        self._called.append((module, site, args, kwargs))

    def stepped(self, optimizer: Optimizer) -> None:
        called, self._called = self._called, []
        for module, site, args, kwargs in called:
            key = (site.file, site.line, site.call)
            if key not in self._found:
                found = dict(site.options)
                with self._hooks.session.stands():
                    if "reason" not in found:
                        with torch.no_grad():
                            found |= tried(module, args, kwargs)
                    if "reason" not in found:
                        found |= variants(self._loader)
                self._found[key] = (site.model_copy(update={"options": found}), module, weights_of(module))
        while called and self._listening:
            self._listening.pop().remove()

    def sites(self) -> Iterator[Site]:
        """Those that were found, with ``reason`` among their options where their outputs cannot be kept."""
        for site, module, before in self._found.values():
            if "reason" not in site.options and not torch.equal(before, weights_of(module)):
                reason = {"reason": "its weights change while the model trains"}
                site = site.model_copy(update={"options": {**site.options, **reason}})
            yield site


def frozen_within(model: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules of a model that have weights, of which none is learnt, with their paths."""
    for name, module in model.named_children():
        parameters, inner = list(module.parameters()), f"{path}.{name}" if path else name
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            yield inner, module
        else:
            yield from frozen_within(module, inner)


def tried(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> JsonDict:
    """Whether a module makes the same of each row by itself, every time; seconds of a call and of one from memory.

    ``{"seconds", "kept_seconds", "row_bytes"}``, or ``{"reason": why its outputs cannot be kept}``.
    """
    try:
        with next_to_training(module):
            before, state = weights_of(module), torch.get_rng_state()
            output = module(*args, **kwargs)
            sizes = {len(each) for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.dim()}
            made = columns_of(output, next(iter(sizes), 0)) if len(sizes) == 1 else []
            if not made or len(made[0]) < 2:
                return {"reason": "it returns something else than tensors with a row for each sample"}
            turned = module(*map(_turned, args), **{name: _turned(value) for name, value in kwargs.items()})
            if not torch.equal(before, weights_of(module)):
                return {"reason": "it changes what it holds when it is called, as BatchNorm does in training mode"}
            if not torch.equal(state, torch.get_rng_state()):
                return {"reason": "it draws random numbers, as dropout does in training mode"}
            for one, two in zip(made, columns_of(turned, len(made[0])), strict=True):
                if not torch.allclose(two.flip(0), one, rtol=0.0, atol=SAME * max(float(one.abs().max()), 1e-9)):
                    return {"reason": "what it makes of a sample depends on the batch around it"}
            kept = KeptOutputs()
            calls = (partial(module, *args, **kwargs), partial(kept, module, args, kwargs))
            seconds, kept_seconds = (_seconds(call, made[0].device) for call in calls)
            if not kept.rows:
                return {"reason": "it takes something else than a batch of tensors"}
            size = sum(each.nbytes for each in made) // len(made[0])
            return {"seconds": seconds, "kept_seconds": kept_seconds, "row_bytes": size}
    except Exception as error:  # one that does not like to be tried is left alone
        return {"reason": f"it cannot be tried: {type(error).__name__}"}


def variants(loader: Any) -> JsonDict:
    """``{"variants": different samples among readings of one index}``, 1 without augmentation, 2 where a flip is all of
    it; or ``{"reason": why no sample is known by an index}``."""
    dataset, collate = loader.dataset, loader.collate_fn
    try:
        with kept_random_state():
            indices = range(0, len(dataset), max(len(dataset) // READ, 1))[:READ]
            read = ([_bytes(collate([dataset[index]])) for _ in range(READINGS)] for index in indices)
            return {"variants": max(len(set(made)) for made in read)}
    except Exception as error:  # such as one that has no indices
        return {"reason": f"samples of {type(dataset).__name__} are not read by an index: {type(error).__name__}"}


def _bytes(batch: Any) -> tuple[bytes, ...]:
    return tuple(each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for _, each in tensors(batch))


def _turned(value: Any) -> Any:
    return value.flip(0) if isinstance(value, torch.Tensor) and value.dim() else value


def _seconds(call: Callable[[], Any], device: torch.device) -> float:
    """The median of a few calls after one that sets things up."""

    def once() -> float:
        began = perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return perf_counter() - began

    once()
    return median(once() for _ in range(TIMED))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether a tensor holds what another does, wherever it was moved and whatever its dtype."""
    return one.shape == other.shape and torch.equal(one.detach().cpu(), other.detach().cpu().to(one.dtype))


class KeepOutputs(Watcher):
    """A trial whose frozen modules take their outputs from memory: all of them are made before the first such step.

    A patch makes them during its first epoch, so that this takes no less.

    Args:
        lines: of calls such as ``train.py:9 teacher``, with the path of the module where it is one of the model's.
    """

    def __init__(self, hooks: TorchHooks, lines: Sequence[str]) -> None:
        self._hooks = hooks
        words = [line.split() for line in lines]
        self._lines = {place for place, _, *path in words if not path}
        self._paths = [path for _, _, *within in words for path in within]
        self._latest: tuple[Any, Any] = (None, None)

    def batch_given(self, loader: Any, batch: Any, training: bool, drawn: Sequence[Any] | None) -> None:
        self._latest = loader, batch

    def root_found(self, model: nn.Module) -> None:
        modules = dict(model.named_modules())
        for path in self._paths:
            if path in modules:
                self._keep(modules[path])

    def frozen_called(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        frame, known = calls_module(), isinstance(module._compiled_call_impl, Listening)
        if frame is not None and not known and f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}" in self._lines:
            self._keep(module)

    def _keep(self, module: nn.Module) -> None:
        inner: Any = module._compiled_call_impl or module._call_impl
        kept, session = KeptOutputs(), self._hooks.session
        filled = computes = False

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal filled, computes
            if computes:  # what is not kept yet
                return inner(*args, **kwargs)
            computes = True
            try:
                if not filled and not session.standing:
                    filled = True
                    with session.stands():
                        self._fill(partial(kept, module), args, kwargs)
                return kept(module, args, kwargs)
            finally:
                computes = False

        module._compiled_call_impl = Listening(call)

    def _fill(self, kept: Callable[[Any, Any], Any], args: Any, kwargs: Any) -> None:
        """Outputs for all samples of the training, which its dataset gives alike every time."""
        loader, batch = self._latest
        columns = [tensor for _, tensor in tensors(batch)]
        values = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        found = ((value, place) for value in values for place, column in enumerate(columns) if _same(value, column))
        places = {id(value): place for value, place in found}
        if len(places) < len(values):  # other samples than the loader's: each is kept as it comes
            return

        def given(value: Any, read: list[torch.Tensor]) -> Any:
            return read[places[id(value)]].to(value.device, value.dtype) if id(value) in places else value

        size, count = loader.batch_size or len(columns[0]), len(loader.dataset)
        with kept_random_state(), torch.no_grad():
            fetcher: Any = _MapDatasetFetcher(loader.dataset, True, loader.collate_fn, False)
            for first in range(0, count, size):
                read = [tensor for _, tensor in tensors(fetcher.fetch(list(range(first, min(first + size, count)))))]
                kept([given(value, read) for value in args], {name: given(v, read) for name, v in kwargs.items()})
