"""The optimizer of a setup: the user's own, rebuilt over the model as it is now."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from typing import Any

import torch
from torch import nn

from autoopt.benchmark.distributed.replicate import Factory, sharded
from autoopt.errors import WorkloadError
from autoopt.setup import Distributed


def users_factory(given: Any, model: nn.Module, names: dict[int, str], others: Iterable[torch.Tensor] = ()) -> Factory:
    """The workload's optimizer as ``factory(params)``; an instance by :func:`rebuilding` it."""
    return rebuilding(given, model, names, others) if isinstance(given, torch.optim.Optimizer) else given


def rebuilding(
    given: torch.optim.Optimizer, model: nn.Module, names: dict[int, str], others: Iterable[torch.Tensor] = ()
) -> Factory:
    """A factory that makes the user's instance again: same class, same groups, every option, no state.

    Args:
        model: as it is trained, on its device, transformed.
        names: id of each parameter of the model as the user gave it, to its name.
        others: parameters of other models that the instance updates as well; they stay in their groups as they are.
    """
    elsewhere = {id(parameter) for parameter in others}

    def rebuilt(params: Any) -> torch.optim.Optimizer:
        groups = _groups(given, model, names, elsewhere, {id(p) for p in _flat(params)})
        takes: Mapping[str, inspect.Parameter] = {}
        with suppress(TypeError, ValueError):  # a class without a signature
            takes = inspect.signature(type(given)).parameters
        anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in takes.values())
        # the defaults that its constructor takes: some hold what no argument sets
        arguments = {name: value for name, value in given.defaults.items() if anything or name in takes}
        try:
            made = type(given)([{"params": group["params"]} for group in groups], **arguments)
        except (TypeError, ValueError, KeyError):
            made = object.__new__(type(given))  # a constructor of its own: the same object, without its state
            made.__dict__.update(given.__dict__)  # (copy.copy would keep what an optimizer saves, and no more)
            made.state = defaultdict(dict)
        made.param_groups = [dict(group) for group in groups]
        made.defaults = dict(given.defaults)
        return made

    return rebuilt


def make_optimizer(
    factory: Factory,
    model: nn.Module,
    transforms: Iterable[Callable[[Factory], Factory]] = (),
    distributed: Distributed | None = None,
) -> torch.optim.Optimizer:
    """Makes the optimizer.

    Raises:
        WorkloadError: what came out is no optimizer.
    """
    for transform in transforms:
        factory = transform(factory)
    if distributed is not None and distributed.sharded_optimizer:
        factory = sharded(factory)
    optimizer = factory(list(model.parameters()))
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise WorkloadError(
            f"optimizer(params) returned {type(optimizer).__name__}; wanted: a torch.optim.Optimizer",
            hint="such as optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3)",
        )
    return optimizer


def stepping_alone(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer, whose step needs no closure.

    Raises:
        WorkloadError: it does.
    """
    needs_closure = False
    with suppress(TypeError, ValueError):  # a step without a signature needs none
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        needs_closure = closure is not None and closure.default is inspect.Parameter.empty
    if needs_closure:
        raise WorkloadError(
            f"{type(optimizer).__name__}.step() needs a closure, which autoopt does not train with",
            hint="use an optimizer whose step() takes none",
        )
    return optimizer


def become(optimizer: torch.optim.Optimizer, made: torch.optim.Optimizer) -> None:
    """Makes an optimizer step as another one, in place: schedules hold on to its groups, and count its calls."""
    kept = {name: value for name, value in optimizer.__dict__.items() if name in ("param_groups", "step")}
    optimizer.__dict__.update({**made.__dict__, **kept})


def _groups(
    given: torch.optim.Optimizer, model: nn.Module, names: dict[int, str], others: set[int], wanted: set[int]
) -> list[dict[str, Any]]:
    """The given groups over the model's wanted parameters as they are now, found by identity, then by name."""
    now = {name: p for name, p in model.named_parameters() if id(p) in wanted}
    by_id = {id(p): name for name, p in now.items()}
    placed: dict[str, int] = {}
    groups = []
    for index, group in enumerate(given.param_groups):
        members = []
        for p in group["params"]:
            name = by_id.get(id(p)) or names.get(id(p), "")
            if id(p) in others:
                members.append(p)
            elif name in now and name not in placed:
                placed[name] = index
                members.append(now[name])
        groups.append({**group, "params": members})
    known = set(names.values())
    for name, p in now.items():
        if name not in placed and name not in known and p.requires_grad:
            groups[_nearest(name, placed)]["params"].append(p)
    return [group for group in groups if group["params"]]


def _nearest(name: str, placed: dict[str, int]) -> int:
    """The group of the parameter that shares the longest path with a new one; the first where none does."""

    def shared(other: str) -> int:
        both = zip(name.split("."), other.split("."), strict=False)
        return sum(1 for _ in takewhile(lambda parts: parts[0] == parts[1], both))

    nearest = max(placed, key=shared, default="")
    return placed[nearest] if shared(nearest) else 0


def _flat(params: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for item in params:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, dict):
            found += _flat([item["params"]] if isinstance(item["params"], torch.Tensor) else item["params"])
        elif isinstance(item, (list, tuple)):  # (name, parameter)
            found += _flat([item[-1]])
    return found
