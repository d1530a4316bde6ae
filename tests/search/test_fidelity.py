"""Gradients of two plans at the same weights, where there is no noise of minibatches to measure them by."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoopt.search.accept.fidelity import Arrays, gradient_fidelity, update_difference

COUNTS = (40, 8)


def arrays() -> Arrays:
    return Arrays(
        names=("weight", "bias"),
        scale=np.ones(sum(COUNTS)),
        tensor=np.repeat([0, 1], COUNTS),
        weights=np.zeros((1, sum(COUNTS))),
        gradients=(),
        draws=None,
        updates=None,
    )


def same_batch(times: int = 4) -> np.ndarray:
    """The gradient of a training on all its samples at once: the same one in every step."""
    return np.tile(np.random.default_rng(0).normal(size=sum(COUNTS)), (times, 1))


def rounded(gradients: np.ndarray, size: float) -> np.ndarray:
    return gradients * (1 + size * np.random.default_rng(1).normal(size=gradients.shape))


@pytest.mark.parametrize(("size", "same"), [(1e-6, True), (4e-3, True), (0.2, False)])
def test_a_training_on_all_samples_at_once_is_judged_by_the_gradient_itself(size: float, same: bool) -> None:
    found = gradient_fidelity(arrays(), same_batch(), rounded(same_batch(), size))
    assert found.same is same, found.text
    assert found.another is not same, found.text


def test_gradients_that_are_all_zero_are_the_same() -> None:
    zero = np.zeros((4, sum(COUNTS)))
    assert gradient_fidelity(arrays(), zero, zero).same
    assert gradient_fidelity(arrays(), zero, same_batch()).another


def test_one_parameter_without_noise_is_judged_by_its_own_gradient() -> None:
    """A bias whose gradient is the same in every batch, in a model whose weights' gradients scatter."""
    before = np.random.default_rng(2).normal(size=(6, sum(COUNTS)))
    before[:, COUNTS[0] :] = 2.0
    assert gradient_fidelity(arrays(), before, rounded(before, 1e-3)).same
    broken = before.copy()
    broken[:, COUNTS[0] :] = 1.0
    found = gradient_fidelity(arrays(), before, broken)
    assert not found.same
    assert found.worst_name == "bias"


def test_updates_are_compared_with_the_size_of_the_incumbents() -> None:
    updated = replace(arrays(), updates=np.ones((3, sum(COUNTS))))
    assert update_difference(updated, replace(arrays(), updates=1.1 * np.ones((3, sum(COUNTS))))) == pytest.approx(0.1)
    assert update_difference(updated, updated) == 0.0
    assert update_difference(updated, arrays()) is None, "the candidate has none"
    assert update_difference(arrays(), updated) is None, "the incumbent has none"
