"""A recorded step on the CPU: a stand-in for the device records nothing and runs the step again at each replay.

It sees what a graph sees: the same tensors at the same places, and the numbers of the time of recording.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from autoopt.benchmark.seeding import seed_everything
from autoopt.benchmark.training import Training
from autoopt.benchmark.warmup import run_block
from autoopt.registry import load_strategies
from autoopt.setup import Setup
from autoopt.simplify.batches import restored
from autoopt.testing.strategies import sample_case
from autoopt.workload import Workload
from autoopt_strategies.compute import whole_step

STRATEGY = load_strategies()["cuda_graphs"]
WHOLE = STRATEGY.apply(Setup(), {"whole": True})


class Again:
    """Takes everything; replays by running again."""

    recorded = replayed = warmed = 0

    def takes(self, tensor: torch.Tensor) -> bool:
        return True

    def warm(self, run: Callable[[], torch.Tensor]) -> torch.Tensor:
        type(self).warmed += 1
        return run()

    def record(self, run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        type(self).recorded += 1

        def replay() -> torch.Tensor:
            type(self).replayed += 1
            return run().clone()

        return replay


@pytest.fixture(autouse=True)
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Again]:
    Again.recorded = Again.replayed = Again.warmed = 0
    monkeypatch.setattr(whole_step, "CudaRecorder", Again)
    return Again


def workload(**changed: Any) -> Workload:
    seed_everything(0)
    x = torch.randn(72, 6)  # the last batch of an epoch is short
    given: dict[str, Any] = {
        "model": nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2)),
        "train_data": TensorDataset(x, (x[:, 0] > 0).long()),
        "batch_size": 16,
        "loss": F.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        "max_steps": 24,
    }
    return Workload(**{**given, **changed})


def training(setup: Setup, **changed: Any) -> Training:
    return Training(workload(**changed), setup, device="cpu", seed=0)


def losses(run: Training, steps: int = 14) -> list[float]:
    return [float(run.step(run.next())) for _ in range(steps)]


def falling(optimizer: Any, steps: int) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scheduler": falling},
        {"clip_grad_norm": 0.5},
        {"accumulation": 2},
        {"optimizer": partial(torch.optim.Adam, lr=0.01, fused=True)},
    ],
    ids=["plain", "schedule", "clip", "accumulation", "adam"],
)
def test_a_recorded_step_trains_as_the_plain_one(changed: dict[str, Any], recorder: type[Again]) -> None:
    setup = WHOLE
    if "optimizer" in changed:  # keeping its count on the device is for devices
        setup = dataclasses.replace(WHOLE, optimizer=())
    expected = losses(training(Setup(), **changed))
    assert losses(training(setup, **changed)) == pytest.approx(expected, rel=1e-5)
    assert recorder.recorded == 1
    assert recorder.replayed >= 6


def test_the_learning_rate_of_a_replay_is_that_of_the_schedule(recorder: type[Again]) -> None:
    """A rate that was recorded as a number would stay what it was."""
    run = training(WHOLE, scheduler=falling)
    losses(run, 10)
    before = [p.detach().clone() for p in run.model.parameters()]
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    for _ in range(2):
        run.one_step(run.next())  # the schedule stands beside it
    assert recorder.replayed > 0
    for was, now in zip(before, run.model.parameters(), strict=True):
        assert torch.equal(was, now)


def test_a_short_batch_runs_as_it_is_and_the_next_one_is_replayed_again(recorder: type[Again]) -> None:
    run = training(WHOLE)
    losses(run, 10)  # 3 of warm-up; the 5th and the 10th are short
    assert (recorder.warmed, recorder.replayed) == (3, 5)


def test_a_number_of_the_optimizer_that_moves_is_not_replayed(recorder: type[Again]) -> None:
    """One-cycle also moves the momentum, which the graph holds as it was."""

    def one_cycle(optimizer: Any, steps: int) -> Any:
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=steps)

    expected = losses(training(Setup(), scheduler=one_cycle))
    assert losses(training(WHOLE, scheduler=one_cycle)) == pytest.approx(expected, rel=1e-5)
    assert recorder.replayed <= 1


def test_a_loaded_checkpoint_is_recorded_anew(recorder: type[Again]) -> None:
    """The optimizer's tensors are others then: a graph would go on with those of before."""
    whole = training(WHOLE)
    losses(whole, 7)
    state = copy.deepcopy(whole.state_dict())
    expected = losses(whole, 5)
    other = training(WHOLE)
    losses(other, 6)
    other.load_state_dict(state)
    assert losses(other, 5) == pytest.approx(expected, rel=1e-6)
    assert recorder.recorded == 3


def test_a_survey_that_puts_everything_back_leaves_no_stale_recording(recorder: type[Again]) -> None:
    expected = losses(training(Setup()), 12)
    run = training(WHOLE)
    found = losses(run, 6)
    batches = run.next()
    with restored(run):
        for _ in range(3):
            run.one_step(batches)
    found.append(float(run.step(batches)))
    assert [*found, *losses(run, 5)] == pytest.approx(expected, rel=1e-5)
    assert recorder.recorded >= 2


def test_a_batch_that_is_not_on_the_device_runs_as_it_is(
    recorder: type[Again], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Again, "takes", lambda self, tensor: False)
    assert losses(training(WHOLE), 6) == pytest.approx(losses(training(Setup()), 6), rel=1e-5)
    assert (recorder.warmed, recorder.recorded) == (0, 0)


def test_what_a_batch_holds_beside_tensors_is_part_of_the_recording(recorder: type[Again]) -> None:
    step = whole_step.RecordedStep(lambda batches: batches[0]["x"].sum() * batches[0]["times"], 1, Again())
    given = [{"x": torch.ones(2), "times": 3}]
    assert [float(step(given)) for _ in range(3)] == [6.0, 6.0, 6.0]
    assert recorder.replayed == 2
    assert float(step([{"x": torch.ones(2), "times": 5}])) == 10.0
    assert recorder.replayed == 2


def test_the_loss_of_a_step_is_its_own(recorder: type[Again]) -> None:
    run = training(WHOLE)
    kept = [run.step(run.next()) for _ in range(4)]
    first = float(kept[3])
    run.step(run.next())
    assert float(kept[3]) == first


def test_the_time_of_a_wrapped_step_counts_once(recorder: type[Again]) -> None:
    block = run_block(training(WHOLE), lambda done, _: done >= 4)
    assert sum(block.stage_seconds.values()) == pytest.approx(block.seconds, rel=1e-6)
    assert "whole" in block.stage_seconds


def case(**changed: Any) -> Any:
    found = sample_case("cuda:0")
    return dataclasses.replace(found, **changed)


def settings_of(given: Any) -> list[dict[str, Any]]:
    return list(STRATEGY.settings(given))


def test_where_the_whole_step_cannot_be_recorded_the_model_is() -> None:
    facts = case().workload
    other = facts.model_copy(update={"optimizer": facts.optimizer.model_copy(update={"type": "Adagrad"})})
    assert settings_of(case(workload=other)) == [{}]
    assert settings_of(case()) == [{"whole": True}, {}]
    assert settings_of(case(setup=Setup().with_precision(dtype="bfloat16"))) == [{"whole": True}]


def test_what_neither_can_record_is_refused_with_both_reasons() -> None:
    scaled = case(setup=Setup().with_precision(dtype="float16", loss_scaling=True))
    answer = STRATEGY.applies(scaled)
    assert not answer
    assert "gradient scaler" in answer.reason
    assert "autocast" in answer.reason
    shapes = case().workload.model_copy(update={"static_shapes": False})
    assert "shapes change" in STRATEGY.applies(case(workload=shapes)).reason
