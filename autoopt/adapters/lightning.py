"""A ``LightningModule`` with its data, and a ``Trainer`` where there is one, as a workload."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import torch
from torch.utils.data import DataLoader

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

_HOW = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Options of a group that say how its update is computed: the plan's, not the schedule's."""


def workload(made: Any) -> Workload:
    """The run that ``trainer.fit(module, datamodule)`` would do, in parts.

    Args:
        made: a module, or a tuple of module, datamodule and trainer in any order.

    Raises:
        WorkloadError: it trains in a way that has no equivalent workload.
    """
    trainer, module, datamodule = _sorted_out(made)
    _refuse(trainer, module)
    view = TrainerView(trainer)
    recorder = Recorder()
    module._trainer = view
    module.__dict__["log"], module.__dict__["log_dict"] = recorder.log, recorder.log_dict
    train, valid = _data(module, datamodule)
    accumulation = int(getattr(trainer, "accumulate_grad_batches", 1) or 1)
    view.estimated_stepping_batches = view.max_steps
    if view.max_steps <= 0:
        view.estimated_stepping_batches = max(1, -(-len(train) // accumulation) * int(view.max_epochs))
    optimizer, config = _optimization(module)

    def scheduler(optimizer: torch.optim.Optimizer, total_steps: int) -> Any:
        view.estimated_stepping_batches = total_steps
        return rebound(_optimization(module)[1]["scheduler"], optimizer)

    return Workload(
        model=module,
        train_data=train,
        loss=Loss(),
        optimizer=optimizer,
        scheduler=scheduler if config else None,
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


# The module outside its Trainer: what it logs is kept, what it asks of its trainer is answered.


class TrainerView:
    """The object that a module sees as ``self.trainer``: the planned length; the rest from the real one, if any."""

    def __init__(self, trainer: Any) -> None:
        self._real = trainer
        self.max_epochs: Any = 1000 if trainer is None else trainer.max_epochs  # Lightning's own default
        steps = None if trainer is None else trainer.max_steps
        if self.max_epochs in (None, -1) and steps in (None, -1):
            raise _cannot("the Trainer has no end", "Trainer(max_epochs=...) or Trainer(max_steps=...)")
        self.max_steps: int = -1 if steps is None else steps
        self.estimated_stepping_batches = 1
        self.current_epoch = self.global_step = 0
        self.training, self.validating, self.sanity_checking = True, False, False
        self.world_size, self.global_rank, self.is_global_zero = 1, 0, True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or self.__dict__.get("_real") is None:
            raise AttributeError(f"there is no Trainer here to ask for {name!r}")
        return getattr(self._real, name)


class Recorder:
    """Stands in for ``self.log``: keeps what validation logs, as means over samples."""

    def __init__(self) -> None:
        self.listening = False
        self.samples = 1
        self._sums: dict[str, tuple[float, float]] = {}
        self._metrics: dict[str, Any] = {}

    def start(self) -> None:
        self.listening = True
        self._sums.clear()
        self._metrics.clear()

    def log(self, name: str, value: Any, *args: Any, batch_size: int | None = None, **options: Any) -> None:
        if not self.listening:
            return
        if hasattr(value, "compute") and hasattr(value, "reset"):  # a torchmetrics.Metric: it adds up itself
            self._metrics[name] = value
            return
        weight = float(batch_size or self.samples)
        total, count = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = (total + float(value) * weight, count + weight)

    def log_dict(self, values: Any, *args: Any, **options: Any) -> None:
        for name, value in values.items():
            self.log(name, value, **options)

    def finish(self) -> dict[str, float]:
        self.listening = False
        found = {name: total / count for name, (total, count) in self._sums.items()}
        for name, metric in self._metrics.items():
            found[name] = float(metric.compute())
            metric.reset()
        return found


class Loss:
    """``loss(model, batch)`` by the module's ``training_step``."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, model: Any, batch: Any) -> torch.Tensor:
        moved = getattr(model, "on_after_batch_transfer", None)
        if moved is not None:
            batch = moved(batch, 0)
        made = _called(model.training_step, batch, self._calls)
        self._calls += 1
        loss: torch.Tensor = made["loss"] if isinstance(made, dict) else made
        return loss


class Evaluate:
    """``evaluate(model, batches)`` by the module's ``validation_step``: what it logs."""

    def __init__(self, view: TrainerView, recorder: Recorder) -> None:
        self._view, self._recorder = view, recorder

    def __call__(self, model: Any, batches: Any) -> dict[str, float]:
        self._view.training, self._view.validating = False, True
        self._recorder.start()
        try:
            model.on_validation_epoch_start()
            for index, batch in enumerate(batches):
                self._recorder.samples = _samples(batch)
                _called(model.validation_step, model.on_after_batch_transfer(batch, 0), index)
            model.on_validation_epoch_end()
        finally:
            self._view.training, self._view.validating = True, False
            metrics = self._recorder.finish()
        return metrics


def _called(step: Any, batch: Any, index: int) -> Any:
    """Lightning lets steps leave out the batch's index."""
    parameters = inspect.signature(step).parameters
    return step(batch, index) if len(parameters) > 1 else step(batch)


def _samples(batch: Any) -> int:
    if isinstance(batch, torch.Tensor):
        return len(batch) if batch.dim() else 1
    if isinstance(batch, dict):
        return _samples(next(iter(batch.values()), None))
    if isinstance(batch, (list, tuple)) and batch:
        return _samples(batch[0])
    return 1


def parts(made: Any) -> tuple[list[Any], list[dict[str, Any]]]:
    """The optimizers and the configurations of their schedulers, from what configure_optimizers gives."""
    schedules: list[Any] = []
    if isinstance(made, dict):
        optimizers, schedules = [made["optimizer"]], [made["lr_scheduler"]] if made.get("lr_scheduler") else []
    elif isinstance(made, (tuple, list)):
        nested = len(made) == 2 and isinstance(made[0], (tuple, list))
        optimizers, schedules = (list(made[0]), list(made[1])) if nested else (list(made), [])
    else:
        optimizers = [made]
    return optimizers, [each if isinstance(each, dict) else {"scheduler": each} for each in schedules]


def rebound(scheduler: Any, optimizer: torch.optim.Optimizer) -> Any:
    """A scheduler that was made for one optimizer, for another over the same groups."""
    old = scheduler.optimizer
    if old is not optimizer:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)  # marks optimizer.step as counted
        for new, given in zip(optimizer.param_groups, old.param_groups, strict=True):
            new.update({name: value for name, value in given.items() if name not in _HOW})
    for inner in (scheduler, *getattr(scheduler, "_schedulers", ())):
        inner.optimizer = optimizer
    return scheduler
