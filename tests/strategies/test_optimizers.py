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
from autoopt_model.muon import hidden_matrices, matrices_by_muon, orthogonal
from autoopt_model.rates_by_layer import lamb, lars
from autoopt_strategies.compute.fused_optimizer import on_copies, update_ratios, updating_by
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


# Muon: who updates what, by which rule, one schedule for both, a checkpoint that holds both.


def by_muon(model: nn.Module, factor: float = 1.0, **options: Any) -> Any:
    optimizer = ADAMW(model.parameters(), **options)
    return matrices_by_muon(optimizer, tuple(hidden_matrices(model, optimizer)["besides"]), factor)


def test_hidden_matrices_are_those_between_embedding_and_head() -> None:
    model = net()
    names = [name for name, _ in model.named_parameters()]
    found = hidden_matrices(model, ADAMW(model.parameters()))
    assert [names[place] for place in found["besides"]] == ["0.weight", "5.weight"]
    assert 0.5 < found["share"] < 0.9
    other = nn.Linear(3, 3).weight
    groups = [{"params": list(model[2].parameters())}, {"params": [other, *model[5].parameters()]}]  # type: ignore[index]
    assert hidden_matrices(model, ADAMW(groups))["besides"] == [2, 3]


def test_matrices_move_as_by_torchs_own_muon_and_the_rest_as_before() -> None:
    mine, theirs = net(), net()
    optimizer, adamw = by_muon(mine, 2.0, weight_decay=0.1), ADAMW(theirs.parameters(), weight_decay=0.1)
    hidden = [theirs[2].weight, theirs[4].weight]  # type: ignore[index]
    muon = torch.optim.Muon(hidden, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for seed in range(3):
        with_gradients(mine, seed)
        with_gradients(theirs, seed)
        optimizer.step()
        muon.step()
        for p in hidden:
            p.grad = None
        adamw.step()
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        exact = name not in ("2.weight", "4.weight")  # torch's products are bfloat16
        torch.testing.assert_close(one, other, rtol=0.0 if exact else 0.03, atol=0.0 if exact else 3e-3)


@pytest.mark.parametrize("shape", [(2, 6, 40), (3, 40, 6), (1, 12, 12)])
def test_an_orthogonal_update_has_directions_of_like_length(shape: tuple[int, ...]) -> None:
    lengths = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(1))))
    assert lengths.min() > 0.4
    assert lengths.max() < 1.4


def test_both_learn_by_one_optimizer_and_hear_its_schedule() -> None:
    model = net()
    made = by_muon(model, 2.0)
    assert type(made) is torch.optim.AdamW
    losses = trained(model, made, 30)
    assert losses[-1] < 0.5 * losses[0]
    torch.optim.lr_scheduler.LambdaLR(made, lambda step: 0.0)
    before = [p.detach().clone() for p in model.parameters()]
    trained(model, made, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_what_is_no_matrix_stays_with_the_user_s_optimizer() -> None:
    """A convolution's weight has four dimensions; a matrix without a gradient has no step."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4), nn.Linear(4, 4))
    made = matrices_by_muon(ADAMW(model.parameters()), besides=(4,), factor=1.0)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    model[2].weight.grad = None
    made.step()
    assert [set(made.state[p]) == {"step", "momentum"} for p in model.parameters()] == [False] * 6
    model[2].weight.grad = torch.ones(4, 8)
    made.step()
    assert set(made.state[model[2].weight]) == {"step", "momentum"}


def test_a_checkpoint_goes_on_with_the_same_losses() -> None:
    model = net()
    optimizer = by_muon(model)
    trained(model, optimizer, 5)
    weights, state = {k: v.clone() for k, v in model.state_dict().items()}, copy.deepcopy(optimizer.state_dict())
    again = net()
    other = by_muon(again)
    again.load_state_dict(weights)
    other.load_state_dict(state)
    assert trained(again, other, 3) == trained(model, optimizer, 3)


# LAMB and LARS: the updates of the papers, with a larger batch beside them.


def test_lamb_is_the_update_of_the_paper() -> None:
    """p - rate * factor * (size of p / size of r) * r, where r is Adam's direction with decoupled decay."""
    rate, decay, factor = 0.01, 0.1, 3.0
    model = net()
    optimizer = lamb(torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay), factor, most=1e9)
    moments: dict[str, Any] = {name: [torch.zeros_like(p), torch.zeros_like(p)] for name, p in model.named_parameters()}
    for step in range(1, 4):
        with_gradients(model, step)
        wanted = {}
        for name, p in model.named_parameters():
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
    optimizer = lars(torch.optim.SGD(model.parameters(), lr=rate, weight_decay=decay), trust)
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


@pytest.mark.parametrize(("rule", "kind", "by"), [(lamb, torch.optim.AdamW, 1.0), (lars, torch.optim.SGD, 0.02)])
def test_weights_of_zero_and_parameters_without_gradients_stay_finite(rule: Any, kind: Any, by: float) -> None:
    model: Any = net()
    nn.init.zeros_(model[2].weight)
    optimizer = rule(kind(model.parameters(), lr=0.1), by)
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
