"""The metric of a script: named, or found in what it prints, tells a tracker or logs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from autoopt.benchmark.live import Printed
from autoopt.script import metric
from autoopt.script.metric import MetricReader, candidates, chosen, direction_of, in_output, name_of, overhear, values


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


# The metric that a script prints at each evaluation, found without being named.


def told(*texts: str, each: int = 1) -> list[Printed]:
    """Lines, ``each`` so many to an evaluation."""
    return [Printed(10 * (n // each + 1), 1.0 * n, n // each, text) for n, text in enumerate(texts)]


def read(lines: list[Printed], pattern: str) -> list[float]:
    return [value for _, _, value in values(pattern, lines)]


EPOCHS = [f"epoch {n} loss {0.6 - n / 10:.2f} val acc 0.8{5 * n} 3.{n}s" for n in (0, 1)]
STEPS = [f"step {n}: train loss {4 - n:.4f}, val loss {4.1 - n:.4f}, {n}.1s" for n in (0, 1, 2)]
MNIST = [f"Test set: Average loss: {x}, Accuracy: {int(100 * x)}/100 ({100 * x:.0f}%)" for x in (0.5, 0.25)]
TRANSFORMERS = [f"{{'eval_loss': '{x}', 'eval_runtime': '0.01', 'epoch': '{x}'}}" for x in (0.5, 0.25)]
IMAGES = "Accuracy of the network on the 10000 test images"


@pytest.mark.parametrize(
    ("lines", "name", "direction", "last"),
    [
        (["epoch 1: accuracy 0.7500", "epoch 2: accuracy 0.8125"], "accuracy", "max", 0.8125),
        (EPOCHS, "val acc", "max", 0.85),
        (STEPS, "val loss", "min", 2.1),
        (MNIST, "Average loss", "min", 0.25),
        (["| valid ppl   148.23 |", "| valid ppl   120.51 |"], "valid ppl", "min", 120.51),
        (TRANSFORMERS, "eval_loss", "min", 0.25),
        (["val_acc=9.1e-1", "val_acc=9.25e-1"], "val_acc", "max", 0.925),
        ([f"{IMAGES}: 53 %"], IMAGES, "max", 53.0),
        (["mAP@0.5 = 0.31", "mAP@0.5 = 0.42"], "mAP@0.5", "max", 0.42),
        (["epoch 0 val fd 32.2", "epoch 1 val fd 28.1"], "val fd", "min", 28.1),
        (["epoch 1: train loss 2.1 valid exact match 0.310"], "valid exact match", "max", 0.31),
        (["epoch 1 val mismatch 0.4"], "val mismatch", "min", 0.4),
        (["epoch 0 loss 0.6133 val acc 0.9500 3.2s"], "val acc", "max", 0.95),  # one: its words name held-out data
    ],
)
def test_the_one_number_of_each_evaluation_is_the_metric(
    lines: list[str], name: str, direction: str, last: float
) -> None:
    (pattern,) = candidates(told(*lines))
    assert (name_of(pattern), direction_of(pattern)) == (name, direction)
    assert read(told(*lines), pattern)[-1] == pytest.approx(last)


@pytest.mark.parametrize(
    "lines",
    [
        ["epoch 1: accuracy 0.75"],  # one evaluation: nothing says what of it changes
        ["epoch 1 took 3.1s", "epoch 2 took 3.2s"],
        ["saved to run-1.pt", "saved to run-2.pt"],
        ["batch 10/100 lr 0.01", "batch 20/100 lr 0.02"],
        ["loss after 100 steps", "loss after 200 steps"],
        ["acc 50%|#####     | 5/10 [00:01, 5.0it/s]", "acc 60%|######    | 6/10 [00:01, 5.0it/s]"],
        ["accuracy none", "accuracy none"],
    ],
)
def test_what_is_no_measure_of_quality_is_not_taken(lines: list[str]) -> None:
    assert candidates(told(*lines)) == ()
    assert chosen(()) is None
    twice = told("batch 1 acc 0.5", "batch 2 acc 0.6", "batch 1 acc 0.7", "batch 2 acc 0.8", each=2)
    assert candidates(twice) == (), "a line that each evaluation prints more than once is none"


BATCH = "Batch[3] - loss: 0.7  acc: 50.0% (32/64)"
EVALUATED = ("Evaluation - loss: 0.61  acc: 55.3% (443/800)", "Evaluation - loss: 0.52  acc: 61.0% (488/800)")


@pytest.mark.parametrize(
    ("batch", "evaluated", "name", "found"),
    [
        (BATCH, EVALUATED, "Evaluation acc", [55.3, 61.0]),
        ("Epoch: [0][10/32]\tLoss 2.1 (2.2)\tAcc@1 17.19 (14.2)",
         (" * Epoch 0 Acc@1 31.25", " * Epoch 1 Acc@1 40.62"), "Epoch Acc@1", [31.25, 40.62]),
        ("accuracy 0.5", ("accuracy 0.6", "accuracy 0.7"), "", []),
    ],
)  # fmt: skip
def test_the_same_words_in_a_line_of_the_training_are_no_metric(
    batch: str, evaluated: tuple[str, ...], name: str, found: list[float]
) -> None:
    """Each batch printed its accuracy, too: whole runs took the last batch's for the metric."""
    lines = [Printed(3, 0.1, None, batch), *told(*evaluated)]
    pattern = chosen(candidates(lines))
    assert ("" if pattern is None else name_of(pattern)) == name
    assert pattern is None or read(lines, pattern) == found


def test_nor_are_they_in_the_output_of_a_whole_run() -> None:
    assert name_of(chosen(in_output([BATCH, EVALUATED[0], BATCH.replace("3", "4")])) or "") == "Evaluation acc"


def test_an_evaluation_that_prints_none_of_it_hides_no_metric_of_held_out_data() -> None:
    lines = told("wrote 10 samples", "step 500 train loss: 2.1 test loss: 2.2", "wrote 10 samples")
    (pattern,) = candidates(lines)
    assert (name_of(pattern), read(lines, pattern)[0]) == ("test loss", 2.2)
    assert candidates(told("wrote 10 samples", "score: 2.2", "score: 2.3")) == ()


@pytest.mark.parametrize(
    ("lines", "taken"),
    [
        (["val loss 0.5 val acc 0.7", "val loss 0.4 val acc 0.8"], "val acc"),
        (["Acc@1 51.2 Acc@5 80.1", "Acc@1 55.0 Acc@5 83.0"], "Acc@1"),
        (["valid loss 3.1 | valid ppl 22.2", "valid loss 3.0 | valid ppl 20.1"], "valid loss"),
        (["best acc 0.7, val acc 0.7", "best acc 0.7, val acc 0.6"], "val acc"),
        (["eval_loss: 0.5\neval_f1: 0.3", "eval_loss: 0.4\neval_f1: 0.4"], "eval_f1"),
        (["loss_train: 0.7 acc_train: 0.4 acc_val: 0.3", "loss_train: 0.6 acc_train: 0.5 acc_val: 0.4"], "acc_val"),
        (["val_wer 0.5 val_loss 0.7", "val_wer 0.4 val_loss 0.6"], "val_wer"),
    ],
)
def test_of_several_measures_the_first_that_is_no_loss_is_taken(lines: list[str], taken: str) -> None:
    said = [Printed(n, 1.0 * n, n, text) for n, each in enumerate(lines) for text in each.split("\n")]
    found = candidates(said)
    assert name_of(chosen(found) or "") == taken


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        (["Train Epoch: 1 Loss: 2.3", "Test set: Average loss: 0.5", "Train Epoch: 2 Loss: 0.9"], ["Average loss"]),
        (["loss 0.9", "val acc 0.70 best 0.70", "loss 0.8", "val acc 0.75 best 0.75"], ["val acc"]),
        (["val acc 0.7"], ["val acc"]),
        (["val acc 10%|# | 1/9 [00:01, 5.0it/s]", "epoch 1 accuracy 0.5", "epoch 2 accuracy 0.6"], []),
        ([], []),
    ],
)
def test_only_words_of_held_out_data_show_a_metric_in_the_output_of_a_whole_run(
    lines: list[str], names: list[str]
) -> None:
    assert [name_of(pattern) for pattern in in_output(lines)] == names


def test_what_is_printed_and_logged_is_one_metric_and_one_evaluation_and_another_value_is_another() -> None:
    """Lightning gives its logger what its callbacks read; many scripts print with fewer digits what they log."""
    lines = told("val_psnr: 19.866413", "val_psnr: 19.866413", "val_psnr: 19.99", "val_psnr: 19.988985", each=2)
    (pattern,) = candidates(lines)
    assert [(step, value) for step, _, value in values(pattern, lines)] == [(10, 19.866413), (20, 19.99)]
    lines = told("val acc 0.50", "val acc 0.60", "val acc 0.61", "val acc 0.61", each=2)
    assert read(lines, "val acc ([0-9.]+)") == [0.5, 0.6, 0.61]
