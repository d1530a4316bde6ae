"""LAMB and LARS: the updates of the papers, around the user's own optimizer, with a larger batch beside them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_model.rates_by_layer import ScaleGradients, ScaleUpdates
from tests.strategies.stand_ins import promised

REGISTRY = load_strategies()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def with_gradients(model: nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=draw)


def test_lamb_is_the_update_of_the_paper() -> None:
    """p - rate * factor * (size of p / size of r) * r, where r is Adam's direction with decoupled decay."""
    rate, decay, factor = 0.01, 0.1, 3.0
    model = net()
    make = ScaleUpdates(factor, most=1e9)(partial(torch.optim.AdamW, lr=rate, weight_decay=decay))
    optimizer = make(model.parameters())
    moments: dict[str, Any] = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in model.named_parameters()}
    for step in range(1, 4):
        with_gradients(model, step)
        wanted = {}
        for name, p in model.named_parameters():
            assert p.grad is not None
            first, second = moments[name]
            first.mul_(0.9).add_(p.grad, alpha=0.1)
            second.mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
            direction = (first / (1 - 0.9**step)) / ((second / (1 - 0.999**step)).sqrt() + 1e-8) + decay * p.detach()
            quotient = factor * p.detach().norm() / direction.norm() if p.ndim > 1 else 1.0
            wanted[name] = p.detach() - rate * quotient * direction
        optimizer.step()
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), wanted[name], rtol=2e-4, atol=1e-6)


def test_lars_is_bounded_by_the_weights_and_by_the_user_s_rate() -> None:
    rate, decay, trust = 0.5, 0.01, 0.02
    model = net()
    optimizer = ScaleGradients(trust)(partial(torch.optim.SGD, lr=rate, weight_decay=decay))(model.parameters())
    assert type(optimizer) is torch.optim.SGD
    with_gradients(model, 1)
    wanted = {}
    for name, p in model.named_parameters():
        slope = p.grad + decay * p.detach()
        local = min(1.0, float(trust * p.detach().norm() / (slope.norm() * rate))) if p.ndim > 1 else 1.0
        wanted[name] = p.detach() - rate * local * slope
    optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), wanted[name])


@pytest.mark.parametrize("change", [ScaleUpdates(1.0), ScaleGradients()])
def test_weights_of_zero_and_parameters_without_gradients_stay_finite(change: Any) -> None:
    model = net()
    nn.init.zeros_(model[0].weight)  # type: ignore[arg-type]
    kind = torch.optim.AdamW if isinstance(change, ScaleUpdates) else torch.optim.SGD
    optimizer = change(partial(kind, lr=0.1))(model.parameters())
    with_gradients(model, 2)
    model[2].weight.grad = None  # type: ignore[union-attr]
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert model[0].weight.abs().sum() > 0  # type: ignore[operator, union-attr]


def test_they_come_with_a_batch_four_times_as_large() -> None:
    strategy = REGISTRY["rates_by_layer"]
    for rule, case in (("lamb", sample_case()), ("lars", sample_case(optimizer={"type": "SGD"}))):
        assert strategy.applies(case)
        assert {setting["rule"] for setting in strategy.settings(case)} == {rule}
        (companion,) = strategy.companions(case, {})
        assert companion.strategy == "batch_size"
        assert companion.setting["size"] == 256
        batch = promised(REGISTRY["batch_size"], case, companion.setting)
        assert promised(strategy, case, {}).high == pytest.approx(max(batch.high, 1.0))
        there = Plan(changes=(Change(strategy="batch_size", setting=companion.setting),))
        assert strategy.companions(dataclasses.replace(case, plan=there), {}) == []
