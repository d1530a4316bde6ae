"""Two loss paths of one training but for rounding: no false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from autoopt.search.accept.loss_paths import (
    PATH_TOLERANCE,
    common,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
)
from autoopt.search.compare.comparison import LossPath

STEPS = 64


def losses(seed: int = 0, steps: int = STEPS) -> tuple[float, ...]:
    """A falling loss with batch noise that depends on the seed alone."""
    batch = np.random.default_rng(seed).normal(0, 0.1, steps)
    step = np.arange(steps)
    return tuple(0.3 + 2.0 * np.exp(-step / 40.0) + batch)


@pytest.mark.parametrize("check", [same_within_tolerance, same_on_average])
def test_honest_paths_pass_again_and_again(check) -> None:
    """Whatever the seed of the rounding noise: no false alarm in 50 paths."""
    alarms = 0
    for seed in range(50):
        own = 0.02 * np.random.default_rng(seed).standard_normal(STEPS)
        path = tuple(np.array(losses(seed)) + own * np.linspace(0, 1, STEPS))
        paths = common(
            LossPath(steps=tuple(range(STEPS)), losses=losses(seed)), LossPath(steps=tuple(range(STEPS)), losses=path)
        )
        alarms += not check(paths).passed
    assert alarms == 0


def test_rounding_may_grow() -> None:
    grown = tuple(np.array(losses()) + 1e-6 * np.exp(np.arange(STEPS) / 6.0).clip(max=1e4))
    paths = common(
        LossPath(steps=tuple(range(STEPS)), losses=losses()), LossPath(steps=tuple(range(STEPS)), losses=grown)
    )
    assert same_to_rounding(paths, 2.0**-23).passed


@pytest.mark.parametrize(("share", "passed"), [(0.5, True), (1.5, False)])
@pytest.mark.parametrize("size", [0.01, 1.0, 100.0])
def test_the_tolerance_is_a_share_of_the_loss_whatever_its_size(share: float, passed: bool, size: float) -> None:
    before = size * np.array(losses())
    paths = common(
        LossPath(steps=tuple(range(STEPS)), losses=tuple(before)),
        LossPath(steps=tuple(range(STEPS)), losses=tuple(before + share * PATH_TOLERANCE * size * 2.3)),
    )
    assert paths.scale == pytest.approx(2.3 * size, rel=0.2)
    found = same_on_average(paths)
    assert found.passed is passed
    assert found.margin == pytest.approx(PATH_TOLERANCE * paths.scale)


def test_another_loss_from_the_first_step_is_told_with_its_margin() -> None:
    path = tuple(100.0 * np.array(losses()))
    halved = tuple(0.5 * np.array(path))
    paths = common(LossPath(steps=tuple(range(STEPS)), losses=path), LossPath(steps=tuple(range(STEPS)), losses=halved))
    found = same_within_tolerance(paths)
    assert found.passed is False
    assert "another loss" in (found.detail or "")
    assert found.margin == pytest.approx(PATH_TOLERANCE * paths.scale)
