"""A loss of probabilities is told from one of logits, in a ``build()`` and in a script: a low precision spoils it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from autoopt.benchmark.losses import takes_probabilities
from autoopt.registry import load_strategies
from autoopt.script.process import Recording
from autoopt.testing.strategies import sample_case

AMP = load_strategies()["amp"]


def output() -> torch.Tensor:
    torch.manual_seed(0)
    return nn.Linear(3, 1)(torch.randn(8, 3)).squeeze(1)


LOSSES = {
    "module": (lambda x, y: nn.BCELoss()(x.sigmoid(), y), True),
    "function in a sum": (lambda x, y: x.pow(2).mean() + 0.5 * F.binary_cross_entropy(x.sigmoid(), y), True),
    "logits": (lambda x, y: F.binary_cross_entropy_with_logits(x, y), False),
    "squares": (lambda x, y: F.mse_loss(x.sigmoid(), y), False),
    "without a history": (lambda x, y: torch.tensor(1.0), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_probabilities_is_seen_in_its_history(name: str) -> None:
    loss, found = LOSSES[name]
    made = loss(output(), torch.ones(8))
    assert takes_probabilities(made) is found
    recording = Recording()
    recording.backward(made)
    recording.backward(torch.tensor(1.0))
    assert recording.takes_probabilities is found


def test_bfloat16_rounds_a_probability_to_one_from_where_no_gradient_leads_back() -> None:
    """What the refusal rests on."""
    logit = torch.tensor([7.0], requires_grad=True)
    F.binary_cross_entropy(logit.bfloat16().sigmoid().float(), torch.zeros(1)).backward()
    assert logit.grad is not None
    assert logit.grad.item() == 0.0


def test_mixed_precision_is_not_for_a_loss_of_probabilities() -> None:
    assert AMP.inspect(
        SimpleNamespace(
            takes_probabilities=True,
            setup=SimpleNamespace(precision=SimpleNamespace(dtype=None)),
            training=SimpleNamespace(scaler=None),
        )
    ) == {"probabilities": True}
    answer = AMP.applies(sample_case(inspected={"amp": {"probabilities": True}}))
    assert not answer
    assert "binary_cross_entropy_with_logits" in answer.reason
    assert AMP.applies(sample_case())
