"""Pieces of both Trainers' exported code: loaders, models in place, the rate on top of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from autoopt.benchmark.loader import recollate, reorder
from autoopt.benchmark.schedule import multiplier
from autoopt.export.printed.data import loader_like
from autoopt.export.printed.plan import plan
from autoopt.export.printed.run import compile_model


class LoaderChange:
    """Your DataLoader with what the plan changes.

    Args:
        change: ``change(theirs, own) -> loader``.

    Attributes:
        used: whether any loader was changed.
    """

    def __init__(self, change: Callable[..., Any]) -> None:
        self.change, self.used = change, False

    def __call__(self, make: Callable[[], Any]) -> Callable[[], Any]:
        """`make` gives your loader."""

        def made() -> Any:
            theirs = make()
            if isinstance(theirs, (list, tuple)) and len(theirs) == 1:
                (theirs,) = theirs
            if type(theirs) is not DataLoader:
                raise TypeError(f"the plan changes a DataLoader; yours is a {type(theirs).__name__}")
            own: dict[str, torch.Generator] = {}
            changed = self.change(theirs, own)
            for generator in own.values():
                generator.manual_seed(torch.initial_seed() % 2**63)
            self.used = True
            return changed

        return made


def train_with(theirs: DataLoader[Any], own: dict[str, torch.Generator]) -> DataLoader[Any]:
    """The training loader."""
    dataset = theirs.dataset
    for change in plan.dataset:
        dataset = change(dataset)
    if plan.batch_size is not None:
        loader = loader_like(theirs, dataset, own, batch_size=plan.batch_size, **plan.loader_options)
    else:
        loader = loader_like(theirs, dataset, own, **plan.loader_options)
    for change in plan.sampler:
        reorder(loader, change)
    for change in plan.collate:
        recollate(loader, change)
    return loader


def validate_with(theirs: DataLoader[Any], own: dict[str, torch.Generator]) -> DataLoader[Any]:
    """The validation loader."""
    return loader_like(theirs, theirs.dataset, own, **plan.valid_options)


training_loader = LoaderChange(train_with)
validation_loader = LoaderChange(validate_with)


def change_model(model: nn.Module) -> None:
    """Changes the model in place: a Trainer keeps the one that it has."""
    for change in plan.model:
        same(model, change(model))
    if plan.compiles:
        compile_model(model)


def same(before: Any, after: Any) -> None:
    """A Trainer keeps the model that it has: a change has to be made in place."""
    if after is not before:
        raise RuntimeError(f"{type(before).__name__} became another object; wrap it before the Trainer gets it")


def scaled(optimizer: torch.optim.Optimizer, factor: float, warmup_steps: int) -> None:
    """Multiplies the learning rate of each step, on top of whatever schedule sets it.

    The warm-up counts the steps of this process: a run that is resumed warms up once more.
    """
    kept: dict[str, Any] = {"step": 0, "rates": []}

    def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        kept["rates"] = [group["lr"] for group in optimizer.param_groups]
        for group, rate in zip(optimizer.param_groups, kept["rates"], strict=True):
            group["lr"] = rate * multiplier(kept["step"], factor, warmup_steps)

    def after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group, rate in zip(optimizer.param_groups, kept["rates"], strict=True):
            group["lr"] = rate
        kept["step"] += 1

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
