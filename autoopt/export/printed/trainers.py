"""Pieces of both Trainers' exported code: loaders, models in place, the rate on top of a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.utils.data import DataLoader

from autoopt.adapters.lightning import parts, rebound
from autoopt.benchmark.loader import recollate, reorder
from autoopt.benchmark.optimizer import rebuilding
from autoopt.benchmark.schedule import multiplier
from autoopt.export.printed import plan
from autoopt.export.printed.data import loader_like
from autoopt.export.printed.run import compile_model, set_switches


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
    loader = loader_like(theirs, dataset, own, batch_size=plan.batch_size, **plan.loader_options)
    for change in plan.sampler:
        reorder(loader, change)
    for change in plan.collate:
        recollate(loader, change)
    return loader


def validate_with(theirs: DataLoader[Any], own: dict[str, torch.Generator]) -> DataLoader[Any]:
    """The validation loader."""
    dataset = theirs.dataset
    for change in plan.valid_dataset:
        dataset = change(dataset)
    return loader_like(theirs, dataset, own, **plan.valid_options)


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


class Optimized(lightning.Callback):
    """Changes a training when it is set up: ``Trainer(..., callbacks=[Optimized()])``."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Puts the plan in place, once there is a Trainer."""
        if stage != "fit":
            return
        if plan.sets_switches:
            set_switches()
        for owner in filter(None, (trainer.datamodule, pl_module)):
            if plan.changes_training_loader and is_overridden("train_dataloader", owner):
                owner.train_dataloader = training_loader(owner.train_dataloader)
            if plan.changes_validation_loader and is_overridden("val_dataloader", owner):
                owner.val_dataloader = validation_loader(owner.val_dataloader)
        if plan.configures:
            # The model is on its device when the optimizer is asked for: what changes it comes just before.
            configure = pl_module.configure_optimizers
            pl_module.configure_optimizers = lambda: self.configured(trainer, pl_module, configure)

    def configured(self, trainer: Any, module: Any, configure: Callable[[], Any]) -> Any:
        """The model as the plan wants it, then the optimizer over it."""
        names = {id(p): name for name, p in module.named_parameters()} if plan.optimizer else None
        if plan.changes_model:
            change_model(module)
        if not plan.configures_optimizer:
            return configure()
        (optimizer,), schedules = parts(configure())
        schedule: Any = schedules[0] if schedules else None
        if plan.optimizer:
            factory: Any = rebuilding(optimizer, module, names or {})
            for change in plan.optimizer:
                factory = change(factory)
            optimizer = factory(list(module.parameters()))
            if schedule is not None:
                rebound(schedule["scheduler"], optimizer)
        if plan.scheduler:
            make: Any = None
            for change in plan.scheduler:
                make = change(make)
            schedule = {"scheduler": make(optimizer, int(trainer.estimated_stepping_batches)), "interval": "step"}
        if plan.scales_rate:
            scaled(optimizer, plan.learning_rate_factor, plan.warmup_steps)
        return optimizer if schedule is None else {"optimizer": optimizer, "lr_scheduler": schedule}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Says where a loader is out of reach."""
        if not training_loader.used:
            raise RuntimeError("the plan changes the loader: give fit() a module or datamodule that makes it")


def optimized(trainer: Any) -> Any:
    """Your Trainer, changed in place; call it between making the Trainer and ``train()``."""
    if plan.sets_switches:
        set_switches()
    if plan.changes_model:
        change_model(trainer.model)
    if plan.dataset:
        dataset = trainer.train_dataset
        for change in plan.dataset:
            dataset = change(dataset)
        trainer.train_dataset = dataset
    for change in plan.valid_dataset:
        trainer.eval_dataset = change(trainer.eval_dataset)
    if plan.scales_rate:
        create = trainer.create_optimizer

        def create_optimizer(*args: Any, **kwargs: Any) -> Any:
            optimizer = create(*args, **kwargs)
            scaled(optimizer, plan.learning_rate_factor, plan.warmup_steps)
            return optimizer

        trainer.create_optimizer = create_optimizer
    return trainer
