"""Each strategy of several processes in two: its losses beside those of one process, and of all of them together."""

from __future__ import annotations

import pytest

from autoopt.records import Change, Plan
from autoopt.records.messages import Block, TrainingRun
from autoopt.registry import load_strategies
from autoopt.strategy import Strategy
from autoopt.testing.method_cards import builtin
from autoopt.testing.strategies import example_of
from tests.distributed.conftest import TWO, Start

TASKS = "autoopt.benchmark.tasks"
ALL = [strategy for strategy in builtin() if example_of(strategy).processes > 1]
HERE = [strategy for strategy in ALL if example_of(strategy).device == "cpu"]
ON_DEVICES = [strategy for strategy in ALL if strategy not in HERE]
STEPS = 12


def losses(start: Start, plan: Plan, device: str = "cpu", name: str = "accumulating") -> tuple[float | None, ...]:
    trial = start(plan, name=name, device=device)
    block = Block.model_validate(trial.call(f"{TASKS}:probe_losses", timeout=90, steps=STEPS))
    trial.close()
    return block.losses


def with_two(strategy: Strategy) -> Plan:
    change = Change(strategy=strategy.name, setting=example_of(strategy).setting)
    return load_strategies().order(TWO.with_change(change))


def test_there_is_one_here_for_each_that_says_so() -> None:
    assert {strategy.name for strategy in HERE} == {
        *("ddp", "static_graph", "bucket_view", "bucket_size", "own_cores"),
        *("quiet_accumulation", "sharded_optimizer"),
    }


@pytest.mark.parametrize("strategy", HERE, ids=lambda strategy: strategy.name)
def test_its_losses_are_those_of_one_process(start: Start, strategy: Strategy) -> None:
    allowed = max(example_of(strategy).losses or 0.0, 1e-4)
    assert losses(start, with_two(strategy)) == pytest.approx(losses(start, Plan()), rel=allowed)


def test_parameters_that_are_shared_out_train_and_evaluate_the_same(start: Start) -> None:
    """Between processes of a CPU, where it pays nothing: the engine's way is that of devices."""
    (strategy,) = ON_DEVICES[-1:]
    assert strategy.name == "fully_sharded"
    runs = []
    for plan in (with_two(strategy), Plan()):
        trial = start(plan)
        runs.append(
            TrainingRun.model_validate(trial.call(f"{TASKS}:train", timeout=90, max_seconds=60.0, max_steps=16))
        )
        trial.close()
    assert runs[0].losses == pytest.approx(runs[1].losses, rel=1e-3)
    assert runs[0].metrics == pytest.approx(runs[1].metrics, abs=0.011)


def test_all_of_them_train_together(start: Start) -> None:
    plan = TWO
    for strategy in (each for each in HERE if each.name != "static_graph"):  # not beside ``no_sync``
        plan = plan.with_change(Change(strategy=strategy.name, setting=example_of(strategy).setting))
    assert losses(start, load_strategies().order(plan)) == pytest.approx(losses(start, Plan()), rel=5e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("strategy", [*HERE, *ON_DEVICES], ids=lambda strategy: strategy.name)
def test_its_losses_are_those_of_one_process_on_devices(start: Start, strategy: Strategy) -> None:
    """NCCL; two devices at least."""
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("it takes two devices")
    allowed = max(example_of(strategy).losses or 0.0, 1e-3)
    assert losses(start, with_two(strategy), "cuda") == pytest.approx(losses(start, Plan(), "cuda:0"), rel=allowed)
