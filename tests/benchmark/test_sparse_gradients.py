"""Fingerprints of a model whose embeddings have sparse gradients, which few operations of torch know."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autoopt.benchmark.fingerprint import Coordinates, digest

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
