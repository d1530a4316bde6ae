"""The workload that the user hands in: a model, its data, its loss, its optimizer and its target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from autoopt.setup import Setup


@dataclass(frozen=True)
class Target:
    """The validation metric that the run is to reach.

    Args:
        metric: a key of what ``evaluate`` returns.
        at_least: reached when the metric is this or more.
        at_most: reached when the metric is this or less.
        mode: ``"max"`` or ``"min"``, needed only without a value (default ``"max"``): then the target
            is what the baseline reaches in the time that it is given.
    """

    metric: str
    at_least: float | None = None
    at_most: float | None = None
    mode: Literal["max", "min"] | None = None

    @property
    def value(self) -> float | None:
        return self.at_least if self.at_least is not None else self.at_most

    @property
    def direction(self) -> Literal["max", "min"]:
        if self.at_most is not None:
            return "min"
        return self.mode or "max"

    def reached(self, metric: float) -> bool:
        """Whether a metric value meets the target; always False without a value."""
        if self.value is None:
            return False
        return metric >= self.value if self.direction == "max" else metric <= self.value


@dataclass
class Workload:
    """A training run as the user has it. ``autoopt.loading.validation.check`` says what is wrong with one.

    Args:
        model: an ``nn.Module`` on the CPU.
        train_data: a ``Dataset`` (map-style or iterable) or the ``DataLoader`` you already have.
        loss: ``loss(model, batch) -> scalar tensor``, or a criterion for ``(input, label)`` batches.
        optimizer: ``optimizer(params) -> Optimizer``, or an ``Optimizer`` over the model's parameters.
        batch_size: samples per step; only with a Dataset.
        scheduler: ``scheduler(optimizer, total_steps)``, stepped once per optimizer step.
        scheduler_interval: ``"step"`` or ``"epoch"``: when the scheduler is stepped.
        valid_data: a Dataset or a DataLoader.
        evaluate: ``evaluate(model, batches) -> {"metric": value}``, in eval mode, without gradients.
        target: what is to be reached.
        max_epochs, max_steps: the length of the real run that you plan.
        evaluate_every: optimizer steps between evaluations; once an epoch by default.
        accumulation: micro-batches per optimizer step, as you train today.
        clip_grad_norm: as you train today.
        setup: how you train today beyond the above (precision, compile, flags); adapters fill it in.
        name: shown in the report.
    """

    model: Any
    train_data: Any
    loss: Callable[..., Any]
    optimizer: Any
    batch_size: int | None = None
    scheduler: Callable[..., Any] | None = None
    scheduler_interval: Literal["step", "epoch"] = "step"
    valid_data: Any = None
    evaluate: Callable[..., Any] | None = None
    target: Target | None = None
    max_epochs: float | None = None
    max_steps: int | None = None
    evaluate_every: int | None = None
    accumulation: int = 1
    clip_grad_norm: float | None = None
    setup: Setup = field(default_factory=Setup)
    name: str = ""
    adapter: str | None = None
