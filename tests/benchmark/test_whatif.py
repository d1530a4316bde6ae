"""A change of the model tried on copies: what it costs is told, and the training stays as it was."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import autoopt
from autoopt.benchmark.training import Training
from autoopt.benchmark.whatif import freed_pages, ratio_with, tried_within
from autoopt.setup import Setup


class Layer(nn.Linear):
    """A layer that takes one second of the device's clock."""

    def forward(self, x: Any) -> Any:
        Layer.clock += 1.0
        return super().forward(x)

    clock = 0.0


def training_of(loss: Any = None, setup: Setup | None = None) -> Training:
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    torch.manual_seed(0)
    workload = autoopt.Workload(
        model=nn.Sequential(Layer(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3)),
        train_data=torch.utils.data.TensorDataset(x, y),
        batch_size=4,
        loss=loss or nn.CrossEntropyLoss(),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        max_steps=10,
    )
    training = Training(workload, setup, device="cpu")
    training.device.now = lambda: Layer.clock  # type: ignore[method-assign]
    return training


def thrice(model: nn.Module) -> nn.Module:
    """Three of the dear layers instead of one."""
    model.insert(1, nn.Sequential(Layer(8, 8), Layer(8, 8)))  # type: ignore[operator]
    return model


def test_three_dear_layers_cost_three_times_one() -> None:
    assert ratio_with(training_of(), thrice, seconds=20.0) == pytest.approx(3.0)
    assert ratio_with(training_of(), seconds=20.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("how", "reads", "seen"),
    [
        ({"change": thrice, "under": torch.bfloat16}, lambda: torch.is_autocast_enabled("cpu"), {True}),
        ({"unchecked": True}, torch.is_anomaly_enabled, {True, False}),
    ],
    ids=["both in another precision", "one side looks for anomalies"],
)
def test_how_both_sides_are_tried(how: dict[str, Any], reads: Any, seen: set[bool]) -> None:
    found = set[bool]()

    class Noting(nn.CrossEntropyLoss):
        def forward(self, *given: torch.Tensor) -> torch.Tensor:
            found.add(reads())
            return super().forward(*given)

    assert ratio_with(training_of(Noting()), **how, seconds=2.0) is not None
    assert found == seen
    assert not torch.is_anomaly_enabled()


def test_where_nothing_is_changed_a_slow_pass_is_made_once() -> None:
    training, before = training_of(), Layer.clock
    assert ratio_with(training, seconds=0.5) == 1.0
    assert Layer.clock - before == 1.0


def test_the_training_stays_as_it_was() -> None:
    training = training_of()
    state = {name: value.clone() for name, value in training.model.state_dict().items()}
    drawn = torch.get_rng_state()
    precision = torch.get_float32_matmul_precision()
    ratio_with(training, thrice, dtype=torch.bfloat16, matmul="medium", seconds=10.0)
    assert all(torch.equal(value, state[name]) for name, value in training.model.state_dict().items())
    assert all(parameter.grad is None for parameter in training.model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert torch.get_float32_matmul_precision() == precision
    assert len(training.model) == 4  # type: ignore[arg-type]


def test_a_change_that_is_far_slower_is_not_repeated() -> None:
    calls = []

    def slow(model: nn.Module) -> nn.Module:
        model.insert(1, nn.Sequential(*(Layer(8, 8) for _ in range(50))))  # type: ignore[operator]
        model.register_forward_hook(lambda *_: calls.append(1))
        return model

    assert ratio_with(training_of(), slow, seconds=1e9) == pytest.approx(51.0)
    assert len(calls) == 2


def test_what_cannot_be_tried_has_no_ratio() -> None:
    def breaks(model: nn.Module) -> nn.Module:
        raise ValueError("no such layout")

    own = nn.Linear(4, 3)
    holds_its_own = lambda model, batch: own(batch[0]).sum()  # noqa: E731
    assert ratio_with(training_of(), breaks) is None
    assert ratio_with(training_of(holds_its_own), thrice) is None
    compiled = training_of()
    compiled.setup = SimpleNamespace(compile=object())  # type: ignore[assignment]
    assert ratio_with(compiled, thrice) is None


def test_nothing_more_is_tried_once_the_time_for_all_of_it_is_over() -> None:
    with tried_within(0.0):
        assert ratio_with(training_of(), thrice) is None
    with tried_within(60.0):
        assert ratio_with(training_of(), thrice) == 3.0
    assert ratio_with(training_of(), thrice) == 3.0, "the limit is over with what it was for"


def test_a_step_is_given_the_pages_anew_that_were_free() -> None:
    class Wide(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + torch.ones(3_000_000).sum()

    training = training_of()
    training.model[3] = Wide(8, 3)  # type: ignore[index]
    before, drawn = {name: each.clone() for name, each in training.model.state_dict().items()}, torch.get_rng_state()
    found = freed_pages(training)
    if found is None:
        pytest.skip("the C library has no malloc_trim")
    assert found > 12_000_000 // 65_536
    assert all(torch.equal(each, before[name]) for name, each in training.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(parameter.grad is None for parameter in training.model.parameters())
    training.setup = Setup().with_compile()
    assert freed_pages(training) is None


def test_a_slow_pass_takes_one_turn() -> None:
    """Three turns of a step of a second had taken six seconds to tell what one tells."""
    began = Layer.clock
    assert ratio_with(training_of(), thrice) == 3.0
    slow = Layer.clock - began
    began = Layer.clock
    assert ratio_with(training_of(), thrice, seconds=20.0) == 3.0
    assert slow == 7.0, "once each, after what is set up on first use"
    assert Layer.clock - began > 2 * slow
