"""Two loss paths of one training but for rounding: no false alarms."""

from __future__ import annotations

import numpy as np
import pytest

from autoopt.search.accept.losses import (
    PATH_TOLERANCE,
    common,
    same_on_average,
    same_to_rounding,
    same_within_tolerance,
    windows,
)
from autoopt.search.compare.comparison import LossPath

STEPS = 64


def losses(seed: int = 0, steps: int = STEPS) -> tuple[float, ...]:
    """A falling loss with batch noise that depends on the seed alone."""
    batch = np.random.default_rng(seed).normal(0, 0.1, steps)
    step = np.arange(steps)
    return tuple(0.3 + 2.0 * np.exp(-step / 40.0) + batch)


@pytest.mark.parametrize("steps", [STEPS, 1100])
@pytest.mark.parametrize("check", [same_within_tolerance, same_on_average])
def test_honest_paths_pass_again_and_again(check, steps: int) -> None:
    """Whatever the seed of the rounding noise: no false alarm in 50 paths."""
    alarms = 0
    for seed in range(50):
        own = 0.02 * np.random.default_rng(seed).standard_normal(steps)
        before = losses(seed, steps)
        path = tuple(np.array(before) + own * np.linspace(0, 1, steps))
        paths = common(
            LossPath(steps=tuple(range(steps)), losses=before), LossPath(steps=tuple(range(steps)), losses=path)
        )
        alarms += not check(paths).passed
    assert alarms == 0


@pytest.mark.parametrize("steps", [64, 100, 256, 1117, 5000])
def test_who_learns_half_as_fast_is_told_however_many_steps_were_captured(steps: int) -> None:
    """All of the difference lies in the first steps; afterwards both have learnt what there is to learn."""
    step, noise = np.maximum(np.arange(steps) - 1, 0), np.random.default_rng(0).normal(0, 0.1, steps)
    before, after = (0.3 + 1.1 * np.exp(-step / pace) + noise for pace in (12.0, 24.0))
    paths = common(
        LossPath(steps=tuple(range(steps)), losses=tuple(before)),
        LossPath(steps=tuple(range(steps)), losses=tuple(after)),
    )
    found = same_within_tolerance(paths)
    assert found.passed is False
    assert "higher than before from step" in (found.detail or "")


def test_what_the_incumbent_differs_from_itself_counts_more_in_a_shorter_window() -> None:
    """Draws of augmentation that scatter the losses at random, in all of a long path."""
    alarms = 0
    for seed in range(30):
        random = np.random.default_rng(seed)
        mean = 0.3 + 2.0 * np.exp(-np.arange(1200) / 40.0)
        paths = [tuple(mean + random.normal(0, 0.4, 1200)) for _ in range(3)]
        sides = [LossPath(steps=tuple(range(1200)), losses=path) for path in paths]
        alarms += not same_on_average(common(*sides[:2]), common(sides[0], sides[2])).passed
    assert alarms == 0


@pytest.mark.parametrize(
    ("steps", "lengths"),
    [(5, [5]), (64, [8] * 8), (1117, [8, 16, 32, 64, 128, 145, 145, 145, 145, 145, 144])],
)
def test_windows_double_until_they_are_an_eighth_of_the_path(steps: int, lengths: list[int]) -> None:
    cut = windows(np.arange(float(steps)))
    assert [len(window) for window in cut] == lengths
    assert np.array_equal(np.concatenate(cut), np.arange(float(steps)))


def test_a_claim_to_change_nothing_allows_a_ten_thousandth_of_the_loss_at_the_start() -> None:
    before = np.array(losses())
    paths = [LossPath(steps=tuple(range(STEPS)), losses=tuple(before + size)) for size in (0.0, 1e-4, 5e-4)]
    assert same_to_rounding(common(paths[0], paths[1]), 0.0).passed
    assert not same_to_rounding(common(paths[0], paths[2]), 0.0).passed


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
