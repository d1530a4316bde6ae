"""Lightning's own objects as workloads: the same steps, losses and learning rates as its Trainer."""

from __future__ import annotations

import warnings
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autoopt.adapters import adapt
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.loading import validation

pytestmark = pytest.mark.usefixtures("their_warnings")


def points(samples: int) -> TensorDataset:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(2))
    return TensorDataset(x, x[:, :2].argmax(1))


@cache
def kinds() -> Any:
    """Lightning, which takes seconds to import, and modules of every kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        interval = "epoch"

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = nn.Linear(4, 2)
            self.losses: list[float] = []
            self.rates: list[float] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("train_loss", loss)
            self.losses.append(float(loss))
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            if self.interval == "step":
                steps = int(self.trainer.estimated_stepping_batches)
                scheduler: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.9, total_steps=steps)
            else:
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            return [optimizer], [{"scheduler": scheduler, "interval": self.interval}]

        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(points(20), batch_size=4)

        def val_dataloader(self) -> DataLoader[Any]:
            return DataLoader(points(10), batch_size=4)

    class ByStep(Module):
        interval = "step"

    class Manual(Module):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    class OwnStep(Module):
        def optimizer_step(self, *args: Any, **options: Any) -> None: ...

    class Two(Module):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=1), torch.optim.SGD(self.parameters(), lr=1)]

    return SimpleNamespace(**locals())


def trainer(**options: Any) -> Any:
    return kinds().lightning.Trainer(
        max_epochs=3,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **options,
    )


@pytest.mark.parametrize("kind", ["Module", "ByStep"])
@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}])
def test_trains_as_its_own_trainer_does(kind: str, options: dict[str, Any]) -> None:
    theirs = getattr(kinds(), kind)()
    fitted = trainer(**options)
    fitted.fit(theirs)
    ours = getattr(kinds(), kind)()
    run = Training(validation.build(lambda: (trainer(**options), ours)), device="cpu", seed=0)
    for batches in run:
        run.step(batches)
    assert ours.losses == pytest.approx(theirs.losses, rel=1e-5)
    assert run.steps == fitted.global_step
    metrics = run.evaluate()
    assert metrics["accuracy"] == pytest.approx(float(fitted.callback_metrics["accuracy"]))


def test_precision_and_early_stopping_of_the_trainer() -> None:
    from lightning.pytorch.callbacks import EarlyStopping

    stop = EarlyStopping("accuracy", mode="max", stopping_threshold=0.9)
    workload = adapt((trainer(precision="bf16-mixed", callbacks=[stop]), kinds().Module()))
    assert workload.setup.precision.dtype == "bfloat16"
    assert (workload.target.metric, workload.target.at_least) == ("accuracy", 0.9)  # type: ignore[union-attr]


def test_module_alone_and_with_a_datamodule() -> None:
    class Data(kinds().lightning.LightningDataModule):  # type: ignore[misc]
        def train_dataloader(self) -> DataLoader[Any]:
            return DataLoader(points(40), batch_size=8)

    alone, together = adapt(kinds().Module()), adapt((kinds().Module(), Data()))
    assert len(alone.train_data) == 5
    assert together.train_data.batch_size == 8
    assert alone.max_epochs == 1000


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: kinds().Manual(), "optimizes manually"),
        (lambda: kinds().OwnStep(), "overrides optimizer_step"),
        (lambda: kinds().Two(), "2 optimizers"),
        (lambda: (trainer(precision="bf16-true"), kinds().Module()), "bf16-true"),
        (lambda: (trainer(limit_train_batches=2), kinds().Module()), "leaves data out"),
        (lambda: (trainer(gradient_clip_val=1.0, gradient_clip_algorithm="value"), kinds().Module()), "by value"),
        (lambda: trainer(), "without a LightningModule"),
    ],
)
def test_what_cannot_be_taken_apart_is_refused_with_the_reason(made: Any, why: str) -> None:
    with pytest.raises(WorkloadError, match=why):
        adapt(made())


def test_other_objects_are_left_alone() -> None:
    assert adapt(nn.Linear(1, 1)) is None


def test_a_schedule_takes_nothing_from_the_plans_optimizer() -> None:
    from autoopt.registry import load_strategies

    module = kinds().Module()
    module.interval = "step"
    trainer = kinds().lightning.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False)
    workload = adapt((trainer, module))
    fused = load_strategies()["fused_optimizer"].apply(workload.setup, {"implementation": "fused"})
    training = Training(workload, fused, device="cpu")
    (group,) = training.optimizer.param_groups
    assert group["fused"] is True
    assert group["lr"] == pytest.approx(0.9 / 25)  # where OneCycleLR begins
    training.step(training.next())
    assert group["fused"] is True
