"""The user's optimizer made again, and the learning rate: any scheduler, whatever the batch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

from autoopt.benchmark.schedule import multiplier
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.setup import Setup

sys.path.insert(0, str(Path(__file__).parent))

from small_training import FEATURES, losses, net, one_cycle, trained, workload


def test_parameter_groups_of_an_instance_are_kept() -> None:
    model = net()
    first, last = list(model[0].parameters()), list(model[4].parameters())  # type: ignore[index]
    groups = [{"params": first, "lr": 0.1, "weight_decay": 0.3}, {"params": last, "betas": (0.5, 0.6)}]
    given = torch.optim.AdamW(groups, lr=0.02, amsgrad=True)
    training = Training(workload(model=model, optimizer=given), device="cpu")
    made = training.optimizer.param_groups
    assert [group["lr"] for group in made] == [0.1, 0.02]
    assert (made[0]["weight_decay"], made[1]["betas"], made[0]["amsgrad"]) == (0.3, (0.5, 0.6), True)
    assert made[0]["params"] == first
    assert not training.optimizer.state
    losses(training, 2)


def test_parameter_groups_survive_another_model() -> None:
    def replaced(model: nn.Module) -> nn.Module:
        fresh = nn.Linear(FEATURES, 8)
        fresh.load_state_dict(model[0].state_dict())  # type: ignore[index]
        model[0] = fresh  # type: ignore[index]
        model[0].register_parameter("extra", nn.Parameter(torch.zeros(1)))  # type: ignore[index]
        return model

    model = net()
    groups = [{"params": model[4].parameters(), "lr": 0.5}, {"params": model[0].parameters(), "lr": 0.1}]  # type: ignore[index]
    optimizer = torch.optim.SGD(groups, lr=0.2, momentum=0.9)
    training = Training(workload(model=model, optimizer=optimizer), Setup().with_model(replaced), device="cpu")
    made = training.optimizer.param_groups
    assert [len(group["params"]) for group in made] == [2, 3]
    assert made[1]["params"][0] is training.model[0].weight  # type: ignore[index]
    assert training.model[0].extra is made[1]["params"][2]  # type: ignore[index]
    losses(training, 2)


class Peculiar(torch.optim.SGD):
    def __init__(self, params: Any, owner: str) -> None:
        super().__init__(params, lr=0.1)
        self.owner = owner


def test_an_optimizer_with_a_constructor_of_its_own() -> None:
    model = net()
    training = Training(workload(model=model, optimizer=Peculiar(model.parameters(), "me")), device="cpu")
    assert training.optimizer.owner == "me"  # type: ignore[attr-defined]
    losses(training, 2)


def test_optimizers_that_cannot_be_used() -> None:
    with pytest.raises(WorkloadError, match="LBFGS.* needs a closure"):
        trained(optimizer=lambda params: torch.optim.LBFGS(params))
    with pytest.raises(WorkloadError, match=r"optimizer\(params\) returned list"):
        trained(optimizer=list)


def rates(setup: Setup, steps: int, **changes: Any) -> list[float]:
    training = Training(workload(**changes), setup, device="cpu")
    seen = []
    for _ in range(steps):
        batches = training.next()
        seen.append(training.optimizer.param_groups[0]["lr"])
        training.step(batches)
    return seen


@pytest.mark.parametrize(
    "scheduler", [one_cycle, lambda o, n: StepLR(o, 3, 0.5), lambda o, n: LambdaLR(o, lambda k: 1 / (1 + k))]
)
def test_another_batch_keeps_the_curve_over_samples(scheduler: Any) -> None:
    plain = rates(Setup(), 15, scheduler=scheduler)
    half = rates(Setup().with_batch(size=4), 30, scheduler=scheduler)
    assert half[::2] == pytest.approx(plain)
    double = rates(Setup().with_batch(accumulation=5), 3, scheduler=scheduler)
    assert double == pytest.approx(plain[::5])


def test_the_factor_multiplies_whatever_the_scheduler_says() -> None:
    plain = rates(Setup(), 15, scheduler=one_cycle)
    times = rates(Setup().with_batch(learning_rate_factor=3.0), 15, scheduler=one_cycle)
    assert times == pytest.approx([3 * rate for rate in plain])
    without = rates(Setup().with_batch(learning_rate_factor=4.0, warmup_steps=4), 6)
    assert without == pytest.approx([0.01 * factor for factor in (1.0, 1.75, 2.5, 3.25, 4.0, 4.0)])


def test_warm_up_is_linear_and_ends() -> None:
    assert [multiplier(step, 1.0, 3) for step in range(4)] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert multiplier(0, 8.0, 10) == pytest.approx(1.0)
    assert multiplier(10, 8.0, 10) == 8.0


def test_a_schedule_that_is_over_stays_where_it_ended() -> None:
    assert len(rates(Setup(), 20, scheduler=one_cycle)) == 20


def test_a_scheduler_per_epoch_and_one_by_the_metric() -> None:
    seen = rates(Setup(), 15, scheduler=lambda o, n: StepLR(o, 1, 0.1), scheduler_interval="epoch")
    assert seen == pytest.approx([0.01] * 5 + [0.001] * 5 + [0.0001] * 5)
    plateau = workload(scheduler=lambda o, n: ReduceLROnPlateau(o, mode="max", patience=0))
    training = Training(plateau, device="cpu")
    losses(training, 3)
    for _ in range(3):
        training.evaluate()
    assert training.optimizer.param_groups[0]["lr"] < 0.01
