"""Changes that a live training takes on and puts off: it is then what it was."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from autoopt.benchmark.seeding import random_state
from autoopt.benchmark.switching import Switching, unswitchable
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.errors import WorkloadError
from autoopt.setup import Setup
from autoopt_strategies.compute.channels_last import to_channels_last
from autoopt_strategies.compute.fused_optimizer import updating_by
from autoopt_strategies.compute.garbage_collection import collecting_rarely
from autoopt_strategies.trying import ChangedOptimizer
from tests.benchmark.small_training import net, one_cycle, workload


def steps(training: Training, count: int = 3) -> list[float | None]:
    return list(run_block(training, lambda done, _: done >= count).losses)


def state(training: Training) -> dict[str, Any]:
    """All that decides how it goes on, but for the place in the data."""
    optimizer = training.optimizer
    return copy.deepcopy(
        {
            "model": training.model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "attributes": {name: repr(value) for name, value in vars(optimizer).items() if name != "state"},
            "schedule": training.schedule.state_dict(),
            "random": random_state(),
            "counts": (training.steps, training.samples),
            "gradients": [p.grad for p in training.model.parameters()],
            "process": (torch.get_num_threads(), torch.get_float32_matmul_precision(), gc.get_threshold()),
        }
    )


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@contextmanager
def live(setup: Setup | None = None, **changes: Any) -> Iterator[tuple[Training, Switching]]:
    training = Training(workload(scheduler=one_cycle, **changes), setup or Setup(), device="cpu", seed=3)
    try:
        steps(training, 4)
        yield training, Switching(training)
    finally:
        training.close()


def doubled(loss: Callable[[Any, Any], torch.Tensor]) -> Callable[[Any, Any], torch.Tensor]:
    return lambda model, batch: 2.0 * loss(model, batch)


SETUPS = {
    "autocast": Setup().with_precision(dtype="bfloat16"),
    "matmul": Setup().with_precision(matmul="medium"),
    "threads": Setup().with_flags(threads=1),
    "fused": Setup().with_optimizer(ChangedOptimizer(updating_by, ("fused",))),
    "foreach": Setup().with_optimizer(ChangedOptimizer(updating_by, ("foreach",))),
    "collector": Setup().with_optimizer(ChangedOptimizer(collecting_rarely, (2,))),
    "loss": Setup().with_loss(doubled),
    "copies": Setup().with_transfer(non_blocking=True, prefetch=2),
    "layout": Setup().with_model(to_channels_last),
    "layout and precision": Setup().with_precision(dtype="bfloat16").with_model(to_channels_last),
    "several": Setup()
    .with_precision(dtype="bfloat16")
    .with_optimizer(ChangedOptimizer(updating_by, ("fused",)))
    .with_flags(threads=1),
    "itself": Setup(),
}


@pytest.mark.parametrize("name", SETUPS)
def test_a_training_that_took_a_change_on_is_then_as_it_was(name: str) -> None:
    assert unswitchable(Setup(), SETUPS[name]) == ""
    with live() as (training, switching):
        before = state(training)
        own = steps(training)
        with switching.to(Setup()):
            pass
        assert same(state(training), before), "putting back is not told by what ran in it"
        for _ in range(2):
            with switching.to(SETUPS[name]):
                assert all(loss is not None for loss in steps(training, 3))
                moved = state(training)
            assert not same(moved["model"], before["model"]), "nothing was trained"
            assert same(state(training), before)
        assert all(loss is not None for loss in own)


def test_what_was_switched_is_what_trains() -> None:
    seen: list[Any] = []

    def noting(model: Any, batch: Any) -> torch.Tensor:
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_num_threads()))
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    with live(loss=noting) as (training, switching):
        threads = torch.get_num_threads()
        with switching.to(SETUPS["several"]):
            steps(training, 1)
            assert training.optimizer.param_groups[0]["fused"] is True
            assert all(state["step"].item() == 5.0 for state in training.optimizer.state.values())
        steps(training, 1)
        assert seen[-2:] == [(True, 1), (False, threads)]
        assert not training.optimizer.param_groups[0].get("fused")


def test_a_switched_step_is_the_step_of_a_process_of_its_own() -> None:
    """The same weights, optimizer state and batch: fused AdamW moves the weights as the other one does."""

    def moved(setup: Setup) -> dict[str, Any]:
        torch.manual_seed(0)
        with live(model=net(norm=False)) as (training, switching), switching.to(setup):
            steps(training, 2)
            return copy.deepcopy(training.model.state_dict())

    one, other = moved(Setup()), moved(SETUPS["fused"])
    apart = {key: float((one[key].float() - other[key].float()).abs().max()) for key in one}
    assert max(apart.values()) < 1e-3, apart


def test_a_change_that_fails_or_loses_its_numbers_leaves_nothing_behind() -> None:
    def broken(loss: Any, after: int) -> Any:
        calls = 0

        def called(model: Any, batch: Any) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls > after:
                raise RuntimeError("no such kernel")
            return loss(model, batch) * math.nan

        return called

    with live() as (training, switching):
        before = state(training)
        with switching.to(Setup().with_loss(partial(broken, after=99))):
            assert steps(training) == [None, None, None]
        assert same(state(training), before)
        with (
            pytest.raises(RuntimeError, match="no such kernel"),
            switching.to(Setup().with_loss(partial(broken, after=2))),
        ):
            steps(training)
        assert same(state(training), before)
        assert all(loss is not None for loss in steps(training))


def test_another_class_of_optimizer_is_refused_and_nothing_is_changed() -> None:
    def sgd(factory: Any) -> Any:
        return lambda params: torch.optim.SGD(params, lr=0.1)

    with live() as (training, switching):
        before = state(training)
        with pytest.raises(WorkloadError, match="AdamW cannot become a SGD"), switching.to(Setup().with_optimizer(sgd)):
            pass
        assert same(state(training), before)


def test_momentum_that_a_schedule_has_set_stays() -> None:
    with live() as (training, switching):
        rate = training.optimizer.param_groups[0]["lr"]
        assert rate != 0.01, "the schedule has moved it"
        with switching.to(SETUPS["fused"]):
            assert training.optimizer.param_groups[0]["lr"] == rate
            steps(training, 1)
            assert training.optimizer.param_groups[0]["lr"] != rate


REFUSED = {
    "loader": (Setup(), Setup().with_loader(num_workers=2)),
    "model": (Setup(), Setup().with_model(net)),
    "compile": (Setup(), Setup().with_compile()),
    "flag cudnn_benchmark": (Setup(), Setup().with_flags(cudnn_benchmark=True)),
    "flag keep_freed_memory": (Setup(), Setup().with_flags(keep_freed_memory=True)),
    "compiled again": (Setup().with_compile(), Setup().with_compile().with_precision(dtype="bfloat16")),
    "threads would be": (Setup().with_flags(threads=1), Setup()),
    "matmul precision would be": (Setup().with_precision(matmul="high"), Setup()),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_a_process_cannot_take_on_is_said(said: str) -> None:
    assert said in unswitchable(*REFUSED[said])


def places(training: Training) -> dict[str, Any]:
    """Where weights, buffers and the optimizer's state are, and how they lie."""
    tensors = dict(training.model.state_dict(keep_vars=True))
    for number, state in enumerate(training.optimizer.state.values()):
        tensors |= {f"{number} {name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {name: (tensor.data_ptr(), tensor.stride()) for name, tensor in tensors.items()}


def convolutions() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 8, 3, padding=1)]
    return torch.nn.Sequential(torch.nn.Unflatten(1, (1, 2, 3)), *layers, torch.nn.Flatten(), torch.nn.Linear(48, 3))


def test_a_layout_that_was_switched_is_put_back_to_the_very_tensors() -> None:
    with live(model=convolutions()) as (training, switching):
        before, numbers = places(training), state(training)
        for _ in range(2):
            with switching.to(SETUPS["layout and precision"]):
                steps(training, 2)
                weight = training.model[3].weight
                four = [t for t in (weight, *training.optimizer.state[weight].values()) if t.dim() == 4]
                assert len(four) == 3
                assert all(t.is_contiguous(memory_format=torch.channels_last) for t in four)
                assert not weight.is_contiguous()
            assert places(training) == before
            assert same(state(training), numbers)
