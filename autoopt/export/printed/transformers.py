"""The function that does in transformers what its TrainingArguments cannot say of a plan."""

from __future__ import annotations

from typing import Any

from autoopt.export.printed.plan import plan
from autoopt.export.printed.run import set_switches
from autoopt.export.printed.trainers import change_model, scaled


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
    if plan.scales_rate:
        create = trainer.create_optimizer

        def create_optimizer(*args: Any, **kwargs: Any) -> Any:
            optimizer = create(*args, **kwargs)
            scaled(optimizer, plan.learning_rate_factor, plan.warmup_steps)
            return optimizer

        trainer.create_optimizer = create_optimizer
    return trainer
