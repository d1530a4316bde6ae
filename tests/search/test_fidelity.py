"""Gradients, updates, buffers and weights of two plans, from arrays that are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from autoopt.search.accept.fidelity import (
    BIAS,
    BUFFERS,
    Arrays,
    buffers_apart,
    buffers_apart_at_once,
    gradient_fidelity,
    parted_across_epochs,
    parted_at_once,
    update_difference,
    weight_difference,
)

# Gradients of two plans at the same weights, where there is no noise of minibatches to measure them by.

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


@pytest.mark.parametrize(("size", "same"), [(1e-6, True), (4e-3, True), (0.3, False)])
def test_a_training_on_all_samples_at_once_is_judged_by_the_gradient_itself(size: float, same: bool) -> None:
    found = gradient_fidelity(arrays(), same_batch(), rounded(same_batch(), size))
    assert found.same is same, found.text
    assert found.another is not same, found.text


WIDE = 400
"""Coordinates of simulated gradients."""


def wide() -> Arrays:
    return replace(arrays(), names=("weight",), scale=np.ones(WIDE), tensor=np.zeros(WIDE, dtype=np.int64))


def simulated(rng, mean: float, bias: float, error: float, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of two plans: lengths of mean, bias and error are over the spread between batches, which is 1."""
    along, across = np.linalg.qr(rng.normal(size=(WIDE, 2)))[0].T
    # a spread that some twenty directions carry, as real gradients have it
    sizes = np.exp(-np.arange(WIDE) / 20.0)
    before = mean * along + rng.normal(size=(batches, WIDE)) * sizes / np.linalg.norm(sizes)
    off = rng.normal(size=(batches, WIDE)) / np.sqrt(WIDE)
    return before, before + bias * across + error * off


@pytest.mark.parametrize(
    ("mean", "bias", "error", "batches", "same", "another"),
    [
        (0.3, 0.0, 1e-6, 8, True, False),
        (0.3, 0.0, 0.05, 32, True, False),
        (0.3, 0.0, 0.35, 64, True, False),  # unbiased: a price of 12 %, and no refusal
        (0.05, 0.085, 0.0, 64, False, False),  # points another way, though small beside the batch spread
        (0.05, 0.085, 0.1, 64, False, False),
        (0.3, 0.15, 0.0, 64, False, False),  # half the mean gradient
        (0.3, 0.0, 0.35, 4, False, False),  # four batches do not tell
        (0.3, 0.0, 1.0, 64, False, True),
        (0.0, 0.0, 1e-6, 32, True, False),  # no mean gradient is left: held against the noise of the whole run
        (0.0, 0.05, 0.0, 32, False, False),
    ],
)
def test_what_is_the_same_by_mean_bias_and_error(
    mean: float, bias: float, error: float, batches: int, same: bool, another: bool
) -> None:
    rng = np.random.default_rng(3)
    found = [gradient_fidelity(wide(), *simulated(rng, mean, bias, error, batches)) for _ in range(20)]
    assert sum(one.same == same for one in found) >= 19, [one.text for one in found]
    assert all(one.another == another for one in found)
    price = np.mean([one.penalty.value for one in found])
    assert price == pytest.approx(1 + error**2 + bias**2, rel=0.05)


def test_a_bias_beyond_the_bound_passes_in_few_of_many_probes() -> None:
    """Rate of the upper bound: a bias of 1.25 times what is allowed, at several lengths of the mean gradient."""
    rng, passed = np.random.default_rng(8), []
    for mean in (0.1, 0.3, 1.0):
        passed += [
            gradient_fidelity(wide(), *simulated(rng, mean, 1.25 * BIAS * mean, 0.1, 16)).same for _ in range(200)
        ]
    assert np.mean(passed) <= 0.025


def test_what_more_batches_would_tell() -> None:
    rng = np.random.default_rng(4)
    few = gradient_fidelity(wide(), *simulated(rng, 0.3, 0.0, 0.2, 6))
    assert not few.same
    assert few.wanted > few.batches
    assert gradient_fidelity(wide(), *simulated(rng, 0.3, 0.0, 0.2, 2 * few.wanted)).same
    assert gradient_fidelity(wide(), *simulated(rng, 0.3, 0.3, 0.0, 64)).wanted is None, "no number of batches helps"
    before, after = simulated(rng, 0.2, 0.0, 0.02, 64)
    bounds = [gradient_fidelity(wide(), before[:count], after[:6]).bias_bound for count in (64, 6)]
    assert bounds[0] < bounds[1], "more gradients of the incumbent tell its mean gradient"


def test_the_price_may_be_nothing_and_is_at_most_that_of_a_training_that_noise_rules() -> None:
    found = gradient_fidelity(wide(), *simulated(np.random.default_rng(2), 3.0, 0.0, 0.4, 32)).penalty
    assert found.low == 1.0
    assert pytest.approx(found.value, abs=0.02) == 1.16
    assert found.value < found.high < 1.3
    zero = np.zeros((4, sum(COUNTS)))
    assert gradient_fidelity(arrays(), zero, zero).same
    assert gradient_fidelity(arrays(), zero, same_batch()).another


def test_one_parameter_without_noise_is_judged_by_its_own_gradient() -> None:
    """A bias whose gradient is the same in every batch, in a model whose weights' gradients scatter."""
    weights = np.random.default_rng(2).normal(size=(6, COUNTS[0]))
    before, broken = (np.hstack([weights, np.full((6, COUNTS[1]), bias)]) for bias in (2.0, 1.0))
    assert gradient_fidelity(arrays(), before, rounded(before, 1e-3)).same
    found = gradient_fidelity(arrays(), before, broken)
    assert not found.same
    assert found.worst_name == "bias"


def test_updates_are_compared_with_the_size_of_the_incumbents() -> None:
    updated = replace(arrays(), updates=np.ones((3, sum(COUNTS))))
    assert update_difference(updated, replace(arrays(), updates=1.1 * np.ones((3, sum(COUNTS))))) == pytest.approx(0.1)
    assert update_difference(updated, updated) == 0.0
    assert update_difference(updated, arrays()) is None, "the candidate has none"
    assert update_difference(arrays(), updated) is None, "the incumbent has none"


def moving(name: str, values: np.ndarray) -> Arrays:
    names = (name,) * values.shape[1]
    return replace(arrays(), buffers={"start": values}, buffer_names=names)


@pytest.mark.parametrize(
    ("factor", "low", "high"),
    [(1.0, 0.0, 0.0), (1.001, 0.0, 0.01), (0.2, 0.7, 0.9), (0.0, np.inf, np.inf)],
    ids=["same", "rounded", "another momentum", "frozen"],
)
def test_buffers_are_compared_by_how_they_change(factor: float, low: float, high: float) -> None:
    walk = np.cumsum(np.random.default_rng(1).normal(size=(20, 6)), axis=0)
    apart, name = buffers_apart(moving("running_mean", walk), moving("running_mean", factor * walk))
    assert low <= apart <= high
    assert name == "running_mean"


def test_buffers_that_never_move_say_nothing_and_one_that_is_gone_does() -> None:
    still = moving("mask", np.ones((20, 6)))
    assert buffers_apart(still, moving("mask", np.ones((20, 6)))) is None
    walk = np.cumsum(np.ones((20, 6)), axis=0)
    assert buffers_apart(moving("running_mean", walk), arrays()) is None, "none was written down"
    assert buffers_apart(moving("running_mean", walk), moving("inner.running_mean", walk)) == (0.0, "running_mean")
    assert buffers_apart(moving("running_mean", walk), moving("mask", walk[:, :2])) == (np.inf, "running_mean")


@pytest.mark.parametrize("seen", [0, 1], ids=["from before the first step", "from its end"])
@pytest.mark.parametrize(
    ("factor", "low", "high"),
    [(1.0, 0.0, 0.0), (1.01, 0.001, 0.1), (0.0, BUFFERS, np.inf)],
    ids=["same", "rounded", "frozen"],
)
def test_the_first_step_of_buffers_is_told_from_weights_that_part_after_it(
    seen: int, factor: float, low: float, high: float
) -> None:
    rng = np.random.default_rng(1)
    walk = np.cumsum(1 + rng.normal(size=(20, 6)), axis=0)
    walk[0] = 0.0
    other = factor * walk
    if factor == 1.01:
        other[2:] += rng.normal(size=(18, 6))  # a large rate: weights have parted by rounding
    apart, _ = buffers_apart_at_once(moving("running_var", walk[seen:]), moving("running_var", other[seen:]))
    assert low <= apart <= high


@pytest.mark.parametrize(("gradient", "parted"), [(1e-9, 0.0), (1e-3, 1.0)])
def test_weights_that_the_loss_does_not_feel_may_part(gradient: float, parted: float) -> None:
    """The bias before batch normalization: its gradient is rounding, of which Adam makes whole steps."""
    generator = np.random.default_rng(0)
    tensor, steps = np.repeat(np.arange(2), 8), np.cumsum(np.full((5, 16), 1e-3), axis=0)
    gradients = np.where(tensor, gradient, 1.0) * generator.normal(size=(4, 16))

    def made(weights: np.ndarray) -> Arrays:
        windows = {"epoch": weights}
        return Arrays(("weight", "bias"), np.ones(16), tensor, weights, (gradients,), None, None, windows)

    before, after = made(steps), made(np.where(tensor, -steps, steps))
    assert bool(parted_across_epochs(before, after)) is bool(parted)
    assert bool(weight_difference(before, after).max()) is bool(parted)
    assert (parted_at_once(before, after, 0.0) is not None) is bool(parted)


@pytest.mark.parametrize(("forgets", "parted"), [(False, None), (True, 6)])
def test_the_signs_of_small_gradients_may_turn_as_far_as_rounding_turns_them(forgets: bool, parted: int | None) -> None:
    """Adam's first step is a sign: most gradients are far smaller than the few that make up a gradient's length."""
    rng, size = np.random.default_rng(3), 512
    gradients = rng.normal(size=(12, size)) * np.where(np.arange(size) < 8, 1.0, 1e-3)

    def trained(rounding: float, *, forgets: bool = False) -> Arrays:
        parameter = torch.zeros(size, requires_grad=True)
        optimizer, weights, seen = torch.optim.Adam([parameter], lr=1e-3), [np.zeros(size)], list[np.ndarray]()
        for step, gradient in enumerate(gradients):
            if forgets and step == 6:
                optimizer.state.clear()
            seen.append(gradient + rounding * rng.normal(size=size))
            parameter.grad = torch.tensor(seen[-1], dtype=torch.float32)
            optimizer.step()
            weights.append(parameter.detach().numpy().astype(np.float64))
        one, all_ = np.ones(size), np.zeros(size, np.int64)
        return Arrays(("weight",), one, all_, np.stack(weights), (np.stack(seen),), None, None)

    before, after, rounded = trained(0.0), trained(2e-4, forgets=forgets), trained(2e-4)
    assert parted_at_once(before, after, 2e-3) is not None  # small, next to the large ones
    found = parted_at_once(before, after, 2e-3, lambda: rounded)
    assert (found[0] if found else None) == parted
    assert before.turned(before) == 0.0
    found = parted_at_once(before, after, before.turned(after))
    assert (found[0] if found else None) == parted, "by the signs of both plans' gradients, without another probe"


@pytest.mark.parametrize(("dropout", "parts"), [(0.0, True), (0.8, False)])
def test_other_draws_part_the_weights_of_a_step_as_far_as_gradients_scatter_under_them(
    dropout: float, parts: bool
) -> None:
    """A layout that fills the same mask in another order: gradients are those of the same training."""
    rng, size = np.random.default_rng(2), sum(COUNTS)
    drawn = 5.0 + dropout * rng.normal(size=(4, size)) if dropout else None
    gradients = (5.0 + rng.normal(size=(12, size)),)

    steps = np.cumsum(5.0 + rng.normal(size=(9, size)), axis=0)
    before = replace(arrays(), weights=steps, gradients=gradients, draws=drawn)
    after = replace(before, weights=steps + np.cumsum(2.5 * rng.normal(size=(9, size)), axis=0))
    assert (parted_at_once(before, after, before.drawn) is not None) is parts
