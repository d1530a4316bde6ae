"""A LightningModule outside its Trainer: what it logs is kept, what it asks of its trainer is answered."""

from __future__ import annotations

import inspect
from typing import Any

import torch


class TrainerView:
    """The object that a module sees as ``self.trainer``: the planned length; the rest from the real one, if any."""

    def __init__(self, trainer: Any, max_epochs: Any, max_steps: int) -> None:
        self._real = trainer
        self.max_epochs, self.max_steps = max_epochs, max_steps
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


_HOW = frozenset({"params", "foreach", "fused", "capturable", "differentiable"})
"""Options of a group that say how its update is computed: the plan's, not the schedule's."""


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
