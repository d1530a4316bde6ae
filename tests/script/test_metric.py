"""The metric of a script, read from what it prints, gives to a tracker, or logs as a LightningModule."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autoopt.script import metric
from autoopt.script.metric import MetricReader, overhear


class _Writer:
    """As torch's SummaryWriter."""

    def add_scalar(self, tag: str, value: Any, step: int) -> None: ...


class _Trainer:
    """As Lightning's."""

    def __init__(self) -> None:
        self.callbacks: list[Any] = []
        self.sanity_checking, self.callback_metrics = False, {"val_loss": 0.5, "val_acc": 0.75}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A tracker of each form and a Lightning, in place of what may be installed; streams are put back."""
    board, wandb, mlflow = ModuleType("tensorboard"), ModuleType("wandb"), ModuleType("mlflow")
    lightning = ModuleType("lightning.pytorch")
    board.SummaryWriter = type("SummaryWriter", (_Writer,), {"add_scalar": _Writer.add_scalar})  # type: ignore[attr-defined]
    wandb.log = lambda data, step=None: None  # type: ignore[attr-defined]
    mlflow.log_metric = lambda key, value, step=None: None  # type: ignore[attr-defined]
    lightning.Trainer = type("Trainer", (_Trainer,), {"__init__": _Trainer.__init__})  # type: ignore[attr-defined]
    lightning.Callback = object  # type: ignore[attr-defined]
    found = {"torch.utils.tensorboard": board, "wandb": wandb, "mlflow": mlflow, "lightning.pytorch": lightning}
    for name, module in found.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(metric, "_LIGHTNING", ("lightning.pytorch",))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    return found


def say(modules: dict[str, Any]) -> None:
    """Everything that a script may say of itself, once."""
    print("epoch 1: val_acc 0.5")
    modules["torch.utils.tensorboard"].SummaryWriter().add_scalar("val/acc", 0.25, 3)
    modules["wandb"].log({"val_acc": 0.375, "picture": object()}, step=3)
    modules["mlflow"].log_metric("val_f1", value=0.125, step=3)
    trainer = modules["lightning.pytorch"].Trainer()
    for callback in trainer.callbacks:
        callback.on_validation_end(trainer, None)
        callback.on_validation_end(SimpleNamespace(sanity_checking=True, callback_metrics={"val_acc": 9.0}), None)


def test_without_a_metric_everything_that_is_said_is_a_line(modules: dict[str, Any]) -> None:
    lines: list[str] = []
    overhear(lines.append)
    say(modules)
    assert lines == [
        "epoch 1: val_acc 0.5",
        "val/acc: 0.25",
        "val_acc: 0.375",
        "val_f1: 0.125",
        "val_loss: 0.5",
        "val_acc: 0.75",
    ]


@pytest.mark.parametrize(
    ("wanted", "values"),
    [
        ("val_acc", [0.5, 0.375, 0.75]),
        ("val/acc", [0.25]),
        ("val_f1", [0.125]),
        (r"^val_acc: ([0-9.]+)", [0.375, 0.75]),
    ],
)
def test_a_metric_is_read_by_its_key_or_by_the_pattern_that_was_found(
    modules: dict[str, Any], wanted: str, values: list[float]
) -> None:
    told: list[float] = []
    tell: Callable[[float], None] = told.append
    MetricReader(wanted, tell).install()
    say(modules)
    assert told == values
