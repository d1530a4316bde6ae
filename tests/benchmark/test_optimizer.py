"""The user's optimizer, gradients and loss: made again, fingerprinted, and told apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau, StepLR

from autoopt.benchmark.fingerprint import Coordinates, digest
from autoopt.benchmark.losses import takes_probabilities
from autoopt.benchmark.training import Training
from autoopt.errors import WorkloadError
from autoopt.registry import load_strategies
from autoopt.script.process import Recording
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from tests.benchmark.small_training import FEATURES, losses, net, one_cycle, trained, workload


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
    warmed = rates(Setup().with_batch(warmup_steps=3), 4)
    assert warmed == pytest.approx([0.01 * factor for factor in (0.25, 0.5, 0.75, 1.0)])


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


# Fingerprints of a model whose embeddings have sparse gradients, which few operations of torch know.

ROWS, WIDTH = 5000, 8


def model_of(sparse: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse), nn.Linear(WIDTH, 1))


def backward(model: nn.Module) -> None:
    model.zero_grad(set_to_none=True)
    model(torch.arange(2000).reshape(20, 100)).pow(2).mean().backward()


def test_sampled_gradients_are_those_of_the_dense_form() -> None:
    found = []
    for sparse in (False, True):
        model = model_of(sparse)
        backward(model)
        found.append(Coordinates(model).gradients())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert np.count_nonzero(found[1]) > 1000


def test_a_batch_that_touched_no_row_has_zero_gradients() -> None:
    model = model_of(True)
    model[0].weight.grad = torch.sparse_coo_tensor(
        torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, WIDTH), (ROWS, WIDTH), check_invariants=False
    )
    assert not np.nan_to_num(Coordinates(model).gradients(), nan=0.0).any()


@pytest.mark.parametrize("make", [torch.optim.SparseAdam, lambda p: torch.optim.SGD(p, lr=0.1)], ids=["adam", "sgd"])
def test_made_up_gradients_are_sparse_where_the_models_own_are(make: Any) -> None:
    """``SparseAdam`` takes no dense gradient."""
    model = model_of(True)
    coordinates = Coordinates(model)
    backward(model)
    coordinates.gradients()
    optimizer = make([model[0].weight])
    before = coordinates.weights()
    for seed in (None, 3):
        coordinates.set_synthetic_gradients(seed, 0.01)
        assert model[0].weight.grad is not None
        assert model[0].weight.grad.is_sparse
        optimizer.step()
    moved = coordinates.weights() != before
    assert moved[: coordinates.counts[0]].mean() > 0.99


def test_a_sparse_batch_has_a_digest() -> None:
    batch = torch.eye(4).to_sparse()
    assert digest(batch) == digest(torch.eye(4).to_sparse())
    assert digest(batch) != digest((2 * torch.eye(4)).to_sparse())


# A loss of probabilities is told from one of logits, in a ``build()`` and in a script: a low precision spoils it.

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


def test_mixed_precision_is_not_for_a_loss_of_low_probabilities() -> None:
    assert AMP.inspect(
        SimpleNamespace(
            setup=SimpleNamespace(precision=SimpleNamespace(dtype=None)),
            training=SimpleNamespace(scaler=None, takes_probabilities=True, model=nn.Linear(1, 1)),
            device=SimpleNamespace(kind="cuda"),
        )
    ) == {"probabilities": "low"}
    answer = AMP.applies(sample_case(inspected={"amp": {"probabilities": "low"}}))
    assert not answer
    assert "binary_cross_entropy_with_logits" in answer.reason
    assert AMP.applies(sample_case())


def test_made_up_weights_do_not_depend_on_the_layout_or_on_what_was_trained() -> None:
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(4, 2)).to(memory_format=memory_format)
        coordinates = Coordinates(model)
        coordinates.set_synthetic_weights(0.05)
        found.append(coordinates.weights())
    np.testing.assert_array_equal(found[0], found[1])
    assert 0.03 < found[0].std() < 0.07
