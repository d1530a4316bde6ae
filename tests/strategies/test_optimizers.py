"""Optimizers put around the user's own: Muon beside it, LAMB and LARS, torch's other implementations, schedules."""

from __future__ import annotations

import copy
import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from autoopt.records import Change, Plan
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case
from autoopt_model.muon import UpdateMatrices, hidden_matrices
from autoopt_model.rates_by_layer import ScaleGradients, ScaleUpdates
from autoopt_strategies.compute.fused_optimizer import on_copies, update_ratios, updating_by
from autoopt_strategies.training.schedule import RisingAndFalling
from tests.strategies.stand_ins import promised

REGISTRY = load_strategies()
ADAMW = partial(torch.optim.AdamW, lr=0.01)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(7, 8), nn.Flatten(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 8), nn.Linear(8, 3)
    )


def with_gradients(model: nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=draw)


def trained(model: nn.Module, optimizer: Any, steps: int) -> list[float]:
    losses = []
    ids, labels = torch.arange(14).view(7, 2) % 7, torch.arange(7) % 3
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


# Muon: who updates what, one schedule for both, a checkpoint that holds both.


def test_hidden_matrices_are_those_between_embedding_and_head() -> None:
    model = net()
    found = hidden_matrices(model)
    names = [name for name, _ in model.named_parameters()]
    assert [names[place] for place in found["matrices"]] == ["2.weight", "4.weight"]
    assert 0.5 < found["share"] < 0.9


def test_both_optimizers_learn_and_hear_the_same_schedule() -> None:
    model = net()
    made = UpdateMatrices(tuple(hidden_matrices(model)["matrices"]), 2.0)(ADAMW)(model.parameters())
    assert [group["lr"] for group in made.param_groups] == [0.02, 0.01]
    losses = trained(model, made, 30)
    assert losses[-1] < 0.5 * losses[0]
    scheduler = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.1)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([0.002, 0.001])
    assert scheduler.get_last_lr() == pytest.approx([0.002, 0.001])


def test_what_is_no_matrix_stays_with_the_user_s_optimizer() -> None:
    """A convolution's weight has four dimensions, which torch's Muon refuses; nor is there a tenth parameter."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))
    made = UpdateMatrices((0, 2, 9))(ADAMW)(model.parameters())
    shapes = [[tuple(p.shape) for p in group["params"]] for group in made.param_groups]
    assert shapes == [[(4, 8)], [(2, 1, 3, 3), (2,), (4,)]]
    assert type(UpdateMatrices((0,))(ADAMW)(model.parameters())) is torch.optim.AdamW


def test_one_cycle_leaves_the_momentum_of_two_kinds_of_optimizers() -> None:
    """Muon's groups have no betas, by which one cycle moves the momentum of those of the Adam family."""
    made = UpdateMatrices((1, 3))(ADAMW)(net().parameters())
    scheduler = RisingAndFalling("cycle", rise=0.3, peak=2.0)(None)(made, 10)
    made.step()
    scheduler.step()
    assert made.param_groups[1]["betas"] == (0.9, 0.999)


def test_a_checkpoint_goes_on_with_the_same_losses() -> None:
    def fresh() -> tuple[nn.Module, Any]:
        model = net()
        return model, UpdateMatrices((1, 3))(ADAMW)(model.parameters())

    model, optimizer = fresh()
    trained(model, optimizer, 5)
    weights, state = {k: v.clone() for k, v in model.state_dict().items()}, copy.deepcopy(optimizer.state_dict())
    again, other = fresh()
    again.load_state_dict(weights)
    other.load_state_dict(state)
    assert trained(again, other, 3) == trained(model, optimizer, 3)


# LAMB and LARS: the updates of the papers, with a larger batch beside them.


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
    model: Any = net()
    nn.init.zeros_(model[2].weight)
    kind = torch.optim.AdamW if isinstance(change, ScaleUpdates) else torch.optim.SGD
    optimizer = change(partial(kind, lr=0.1))(model.parameters())
    with_gradients(model, 2)
    model[4].weight.grad = None
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert model[2].weight.abs().sum() > 0


def test_they_come_with_a_batch_four_times_as_large() -> None:
    strategy = REGISTRY["rates_by_layer"]
    for rule, case in (("lamb", sample_case()), ("lars", sample_case(optimizer={"type": "SGD"}))):
        assert strategy.applies(case)
        assert {setting["rule"] for setting in strategy.settings(case)} == {rule}
        (companion,) = strategy.companions(case, {})
        assert (companion.strategy, companion.setting["size"]) == ("batch_size", 256)
        batch = promised(REGISTRY["batch_size"], case, companion.setting)
        assert promised(strategy, case, {}).high == pytest.approx(max(batch.high, 1.0))
        there = Plan(changes=(Change(strategy="batch_size", setting=companion.setting),))
        assert strategy.companions(dataclasses.replace(case, plan=there), {}) == []


# torch's other implementations, tried on copies.


def test_trying_an_update_leaves_the_optimizer_as_it_is() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.3)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    assert set(update_ratios(optimizer, 1e9)) == {"foreach", "fused"}
    assert update_ratios(optimizer, 10.0) == {}
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state
    assert all(parameter.grad is None for parameter in model.parameters())
    one = on_copies(optimizer)
    other = updating_by(one, "foreach")
    assert other.param_groups[0]["params"][0] is one.param_groups[0]["params"][0]
