"""The callback that does in Lightning what its Trainer's arguments cannot say of a plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from autoopt.adapters.lightning_steps import rebound
from autoopt.benchmark.optimizer import RebuiltOptimizer
from autoopt.export.printed.plan import plan
from autoopt.export.printed.run import set_switches
from autoopt.export.printed.trainers import change_model, scaled, training_loader, validation_loader


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
        optimizer, schedule = parts(configure())
        if plan.optimizer:
            factory: Any = RebuiltOptimizer(optimizer, module, names or {})
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


def parts(made: Any) -> tuple[torch.optim.Optimizer, dict[str, Any] | None]:
    """The optimizer and the configuration of its scheduler, from what configure_optimizers gives."""
    schedule: Any = None
    if isinstance(made, dict):
        made, schedule = made["optimizer"], made.get("lr_scheduler")
    elif isinstance(made, (tuple, list)):
        optimizers, schedules = made if isinstance(made[0], (tuple, list)) else (made, [])
        (made,) = optimizers
        schedule = schedules[0] if schedules else None
    if schedule is not None and not isinstance(schedule, dict):
        schedule = {"scheduler": schedule}
    return made, schedule
