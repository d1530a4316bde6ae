"""Muon beside the user's optimizer: who updates what, one schedule for both, a checkpoint that holds both."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from autoopt_model.muon import UpdateMatrices, hidden_matrices
from autoopt_strategies.training.schedule import Cycle

ADAMW = partial(torch.optim.AdamW, lr=0.01)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(7, 8), nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 8), nn.Linear(8, 3)
    )


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
    assert [[tuple(p.shape) for p in group["params"]] for group in made.param_groups] == [
        [(4, 8)],
        [(2, 1, 3, 3), (2,), (4,)],
    ]
    assert type(UpdateMatrices((0,))(ADAMW)(model.parameters())) is torch.optim.AdamW


def test_one_cycle_leaves_the_momentum_of_two_kinds_of_optimizers() -> None:
    """Muon's groups have no betas, by which one cycle moves the momentum of those of the Adam family."""
    model = net()
    made = UpdateMatrices((1, 3))(ADAMW)(model.parameters())
    scheduler = Cycle(rise=0.3, peak=2.0)(None)(made, 10)
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
