"""A ``LightningModule`` with its data, and a ``Trainer`` where there is one, as a workload."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

from autoopt.adapters.lightning_steps import Evaluate, Loss, Recorder, TrainerView, parts, rebound
from autoopt.errors import WorkloadError
from autoopt.setup import Setup
from autoopt.workload import Target, Workload

_PRECISIONS = {"32-true": (None, False), "bf16-mixed": ("bfloat16", False), "16-mixed": ("float16", True)}
_OWN_OPTIMIZATION = (
    "optimizer_step",
    "optimizer_zero_grad",
    "backward",
    "configure_gradient_clipping",
    "lr_scheduler_step",
    "transfer_batch_to_device",
    "on_before_batch_transfer",
)
_NOT_CALLED = (
    "on_train_start",
    "on_train_epoch_start",
    "on_train_epoch_end",
    "on_train_batch_start",
    "on_train_batch_end",
    "on_before_optimizer_step",
    "on_before_zero_grad",
)


def workload(made: Any) -> Workload:
    """The run that ``trainer.fit(module, datamodule)`` would do, in parts.

    Args:
        made: a module, or a tuple of module, datamodule and trainer in any order.

    Raises:
        WorkloadError: it trains in a way that has no equivalent workload.
    """
    trainer, module, datamodule = _sorted_out(made)
    _refuse(trainer, module)
    view = TrainerView(trainer, *_length(trainer))
    recorder = Recorder()
    module._trainer = view
    module.__dict__["log"], module.__dict__["log_dict"] = recorder.log, recorder.log_dict
    train, valid = _data(module, datamodule)
    accumulation = int(getattr(trainer, "accumulate_grad_batches", 1) or 1)
    view.estimated_stepping_batches = _planned(view, train, accumulation)
    optimizer, config = _optimization(module)
    return Workload(
        model=module,
        train_data=train,
        loss=Loss(),
        optimizer=optimizer,
        scheduler=_scheduler(module, view) if config else None,
        scheduler_interval=config.get("interval", "epoch"),
        valid_data=valid,
        evaluate=Evaluate(view, recorder) if valid is not None else None,
        target=_target(trainer, config) if valid is not None else None,
        max_epochs=view.max_epochs if view.max_steps <= 0 else None,
        max_steps=view.max_steps if view.max_steps > 0 else None,
        evaluate_every=_evaluate_every(trainer, train, accumulation),
        accumulation=accumulation,
        clip_grad_norm=_clip(trainer),
        setup=_setup(trainer),
        name=type(module).__name__,
        adapter="lightning",
    )


def _sorted_out(made: Any) -> tuple[Any, Any, Any]:
    found: dict[str, Any] = {}
    for item in made if isinstance(made, (tuple, list)) else (made,):
        names = {cls.__name__ for cls in type(item).__mro__}
        for name in ("Trainer", "LightningModule", "LightningDataModule"):
            if name in names:
                found[name] = item
    if "LightningModule" not in found:
        raise WorkloadError(
            f"build() returned {', '.join(found)} without a LightningModule",
            hint="return the module, (module, datamodule) or (trainer, module, datamodule)",
        )
    return found.get("Trainer"), found["LightningModule"], found.get("LightningDataModule")


def _cannot(why: str, hint: str = "") -> WorkloadError:
    return WorkloadError(
        f"this Lightning training cannot become a workload: {why}",
        hint=hint or "return an autoopt.Workload with the model, the loss, the optimizer and the data instead",
    )


def _refuse(trainer: Any, module: Any) -> None:
    if not module.automatic_optimization:
        raise _cannot(
            f"{type(module).__name__} optimizes manually (automatic_optimization = False), "
            "so that no one else knows where a step begins and ends",
            "use automatic optimization, or return an autoopt.Workload",
        )
    for name in _OWN_OPTIMIZATION:
        if _overrides(module, name):
            raise _cannot(f"{type(module).__name__} overrides {name}")
    ignored = [name for name in _NOT_CALLED if _overrides(module, name)]
    if ignored:
        warnings.warn(f"{type(module).__name__}: autoopt does not call {', '.join(ignored)}", stacklevel=3)
    if trainer is not None and getattr(trainer, "num_devices", 1) > 1:
        raise _cannot(f"the Trainer uses {trainer.num_devices} devices", "measure on one: Trainer(devices=1)")
    if trainer is not None and getattr(trainer, "limit_train_batches", 1.0) not in (1.0, None):
        raise _cannot(f"limit_train_batches={trainer.limit_train_batches} leaves data out", "leave it away")


def _overrides(module: Any, name: str) -> bool:
    """Whether the user's class, and none of Lightning's, defines a hook."""
    for cls in type(module).__mro__:
        if name in vars(cls):
            return cls.__module__.partition(".")[0] not in ("lightning", "pytorch_lightning", "torch")
    return False


def _length(trainer: Any) -> tuple[Any, int]:
    """Epochs and steps as the Trainer has them; its own defaults without one."""
    if trainer is None:
        return 1000, -1
    epochs, steps = trainer.max_epochs, trainer.max_steps
    if epochs in (None, -1) and steps in (None, -1):
        raise _cannot("the Trainer has no end", "Trainer(max_epochs=...) or Trainer(max_steps=...)")
    return epochs, steps if steps is not None else -1


def _data(module: Any, datamodule: Any) -> tuple[DataLoader[Any], DataLoader[Any] | None]:
    for part in (datamodule, module):
        if part is not None:
            part.prepare_data()
            part.setup("fit")
    module.configure_model()
    source = datamodule if datamodule is not None and _overrides(datamodule, "train_dataloader") else module
    if not _overrides(source, "train_dataloader"):
        raise _cannot("there is no train_dataloader", "define it on the module, or return (module, datamodule)")
    train = source.train_dataloader()
    if not isinstance(train, DataLoader):
        raise _cannot(f"train_dataloader() returned {type(train).__name__}; wanted: one DataLoader")
    valid = source.val_dataloader() if _overrides(source, "val_dataloader") else None
    if isinstance(valid, (list, tuple)) and len(valid) == 1:
        valid = valid[0]
    if valid is not None and not isinstance(valid, DataLoader):
        raise _cannot(f"val_dataloader() returned {type(valid).__name__}; wanted: one DataLoader")
    return train, valid if _overrides(module, "validation_step") else None


def _planned(view: TrainerView, train: DataLoader[Any], accumulation: int) -> int:
    if view.max_steps > 0:
        return view.max_steps
    return max(1, -(-len(train) // accumulation) * int(view.max_epochs))


def _optimization(module: Any) -> tuple[torch.optim.Optimizer, dict[str, Any]]:
    """The optimizer and Lightning's configuration of its scheduler; empty where there is none."""
    optimizers, schedulers = parts(module.configure_optimizers())
    if len(optimizers) != 1 or isinstance(optimizers[0], dict):
        raise _cannot(f"configure_optimizers() gives {len(optimizers)} optimizers")
    optimizer = optimizers[0]
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise _cannot(f"configure_optimizers() gives {type(optimizer).__name__}; wanted: an optimizer")
    if len(schedulers) > 1:
        raise _cannot(f"configure_optimizers() gives {len(schedulers)} schedulers")
    config = schedulers[0] if schedulers else {}
    if config.get("frequency", 1) != 1:
        raise _cannot(f"its scheduler has frequency={config['frequency']}", "use 1, or the other interval")
    return optimizer, config


def _scheduler(module: Any, view: TrainerView) -> Any:
    def make(optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        view.estimated_stepping_batches = total_steps
        return rebound(_optimization(module)[1]["scheduler"], optimizer)

    return make


def _target(trainer: Any, config: dict[str, Any]) -> Target | None:
    """From EarlyStopping (with its threshold), ModelCheckpoint, or what the scheduler monitors."""
    for callback in getattr(trainer, "callbacks", ()):
        monitor, mode = getattr(callback, "monitor", None), getattr(callback, "mode", None)
        if not monitor or mode not in ("min", "max"):
            continue
        threshold = getattr(callback, "stopping_threshold", None)
        if threshold is not None:
            limit = float(threshold)
            return Target(monitor, at_least=limit) if mode == "max" else Target(monitor, at_most=limit)
        return Target(monitor, mode=mode)
    return Target(config["monitor"], mode="min") if config.get("monitor") else None


def _evaluate_every(trainer: Any, train: DataLoader[Any], accumulation: int) -> int | None:
    interval = getattr(trainer, "val_check_interval", 1.0)
    every = getattr(trainer, "check_val_every_n_epoch", 1) or 1
    if isinstance(interval, int) and not isinstance(interval, bool):
        return max(1, interval // accumulation)
    batches = len(train) * (interval or 1.0) * every
    return None if (interval or 1.0) == 1.0 and every == 1 else max(1, round(batches / accumulation))


def _clip(trainer: Any) -> float | None:
    value = getattr(trainer, "gradient_clip_val", None)
    algorithm = getattr(trainer, "gradient_clip_algorithm", None)
    if value and algorithm is not None and str(getattr(algorithm, "value", algorithm)) != "norm":
        raise _cannot("it clips gradients by value", 'gradient_clip_algorithm="norm"')
    return float(value) if value else None


def _setup(trainer: Any) -> Setup:
    precision = str(getattr(trainer, "precision", "32-true"))
    if precision not in _PRECISIONS:
        raise _cannot(f'precision="{precision}"', f"one of {', '.join(_PRECISIONS)}")
    dtype, scaling = _PRECISIONS[precision]
    return Setup().with_precision(dtype=dtype, loss_scaling=scaling) if dtype else Setup()
