"""Two training-loss paths from the same seed: the same training, or not?

``same_to_rounding`` is for changes that claim to change nothing, ``same_within_tolerance`` for those
that may round otherwise, ``same_on_average`` for workloads whose own augmentation is random, so that
single losses cannot be compared at all. A path that is lower is suspect too: a loss that leaves
out its hardest samples falls faster than an honest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoopt.records import Quality
from autoopt.search.compare.comparison import LossPath

Array = NDArray[np.float64]

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, None: 2.0**-23}
"""Relative error of one operation, by torch's name for the precision; None: float32."""

FIRST_STEPS = 8
"""Steps in which rounding has not yet grown: weights are still the same but for rounding."""

FEWEST_STEPS = 8
"""Fewer common steps than this are no evidence."""

PATH_TOLERANCE = 0.02
"""How far a smoothed loss may lie off, as a share of the loss at the start."""

_ROUNDING_GROWTH = 0.3
_WINDOWS = 8
CHANCE = 4.0
"""Standard errors of a window's mean that scatter within it may be off by."""


@dataclass(frozen=True)
class Common:
    """The losses of both sides at the steps that both captured; equal lengths."""

    steps: Array
    before: Array
    after: Array

    @property
    def difference(self) -> Array:
        return self.after - self.before

    @property
    def scale(self) -> float:
        """The loss at the start, against which a difference counts."""
        return float(max(np.abs(self.before[: max(FIRST_STEPS, len(self.before) // 10)]).mean(), 1e-12))

    @property
    def batch_noise(self) -> float:
        """How much the loss changes from one batch to the next (standard deviation)."""
        return float(np.median(np.abs(np.diff(self.before)))) / 0.9539 if len(self.before) > 1 else 0.0


def first_not_finite(path: LossPath) -> int | None:
    """The first step whose loss was not finite."""
    return next((step for step, loss in zip(path.steps, path.losses, strict=True) if loss is None), None)


def common(before: LossPath, after: LossPath) -> Common | None:
    """The steps that both captured with finite losses; None where too few to tell anything."""
    left = {s: loss for s, loss in zip(before.steps, before.losses, strict=True) if loss is not None}
    right = {s: loss for s, loss in zip(after.steps, after.losses, strict=True) if loss is not None}
    steps = sorted(left.keys() & right.keys())
    if len(steps) < FEWEST_STEPS:
        return None
    return Common(
        np.array(steps, dtype=np.float64),
        np.array([left[s] for s in steps], dtype=np.float64),
        np.array([right[s] for s in steps], dtype=np.float64),
    )


def same_to_rounding(paths: Common, epsilon: float, again: Common | None = None) -> Quality:
    """Same order of samples and same arithmetic: equal to rounding at first, and close to it later.

    Rounding grows in training, so later losses may differ by a third of what one batch differs from
    the next (median); another order of samples differs by 1.4 times that, from the first step on.
    ``again``, the incumbent against itself in another process, widens both bounds where the incumbent
    does not repeat itself either.
    """
    own = float(np.abs(again.difference).max()) if again else 0.0
    early = max(1e-4 * paths.scale, 64 * epsilon * paths.scale, 4 * own)
    late = max(early, _ROUNDING_GROWTH * paths.batch_noise)
    difference = np.abs(paths.difference)
    first = paths.steps < paths.steps[0] + FIRST_STEPS
    wrong = difference > np.where(first, early, late)
    passed = not wrong[first].any() and float(np.median(difference)) <= late and same_in_windows(paths).passed is True
    if passed:
        detail = f"same losses to rounding over {len(difference)} steps"
    else:
        at = int(paths.steps[int(np.argmax(wrong))]) if wrong.any() else int(paths.steps[-1])
        detail = f"losses differ from step {at} on, by up to {difference.max():.3g} where rounding explains {early:.1g}"
    return Quality(
        method="losses",
        passed=passed,
        largest_loss_difference=float(difference.max()),
        steps=len(difference),
        margin=early,
        detail=detail,
    )


def same_within_tolerance(paths: Common) -> Quality:
    """Same training but for rounding: the smoothed path stays within the tolerance, from the first step on."""
    first, rounded = _first_difference(paths)
    if not rounded:
        return Quality(
            method="loss_path",
            passed=False,
            largest_loss_difference=float(np.abs(paths.difference).max()),
            steps=len(paths.steps),
            margin=PATH_TOLERANCE * paths.scale,
            detail=f"on the same weights and the same batch the loss differs by {first:.3g}: another loss is computed",
        )
    return same_in_windows(paths)


def same_on_average(paths: Common, again: Common | None = None) -> Quality:
    """Random samples: windows of the two paths agree within the tolerance or what chance explains.

    ``again``: the incumbent against itself in another process, whose differences are chance.
    """
    quality = same_in_windows(paths, again)
    return quality.model_copy(update={"detail": quality.detail + " (samples are random, so compared on average)"})


def as_rounded(paths: Common, own: Common) -> bool:
    """Whether two paths part no sooner and no further than one of them does from itself, begun a rounding apart.

    Args:
        own: the path, and that from weights that differ by a rounding.
    """
    return _first_difference(paths)[1] and same_in_windows(paths, own).passed is True


def _first_difference(paths: Common) -> tuple[float, bool]:
    """The larger of the first two differences, on weights alike but for rounding; and whether rounding explains it."""
    first = float(np.abs(paths.difference[:2]).max())
    return first, first <= PATH_TOLERANCE * max(paths.scale, float(np.abs(paths.before[:2]).max()))


def farthest(paths: Common) -> float:
    """The largest difference of window means beyond chance, as a share of the loss there, or at the start if larger."""
    before = windows(np.abs(paths.before))
    differences = windows(paths.difference)
    return max(
        abs(float(window.mean())) / max(paths.scale, float(level.mean()))
        if abs(window.mean()) > CHANCE * error_of_mean(window)
        else 0.0
        for window, level in zip(differences, before, strict=True)
    )


def windows(difference: Array) -> list[Array]:
    """Windows of equal length, and at the start of a long path shorter ones, each twice as long as the one before.

    A loss falls most in the first steps: there another training shows itself, whatever number of steps was captured.

    Args:
        difference: of the two paths, one value a step.
    """
    usual = len(difference) // max(1, min(_WINDOWS, len(difference) // FIRST_STEPS))
    ends: list[int] = []
    length = FIRST_STEPS
    while length < usual:
        ends.append(sum(ends[-1:]) + length)
        length *= 2
    start, rest = np.split(difference, ends)[:-1], difference[sum(ends[-1:]) :]
    return [*start, *np.array_split(rest, max(1, round(len(rest) / max(usual, 1))))]


def same_in_windows(paths: Common, again: Common | None = None) -> Quality:
    """The largest difference of window means beyond what the scatter inside the windows explains."""
    difference = paths.difference
    cut = windows(difference)
    means = np.array([window.mean() for window in cut])
    errors = np.array([error_of_mean(window) for window in cut])
    if again is not None:
        lengths = np.array([len(window) for window in cut])
        parts = np.array_split(again.difference, max(1, len(difference) // lengths[-1]))
        chance = float(np.sqrt(np.mean([part.mean() ** 2 for part in parts if len(part)])))
        errors = np.maximum(errors, chance * np.sqrt(np.maximum(lengths[-1] / lengths, 1.0)))
    margin = PATH_TOLERANCE * paths.scale
    excess = np.abs(means) - margin - CHANCE * errors
    worst = int(np.argmax(excess))
    passed = bool(excess[worst] <= 0)
    where = int(paths.steps[sum(len(window) for window in cut[:worst])])
    direction = "higher" if means[worst] > 0 else "lower"
    detail = (
        f"loss path within {PATH_TOLERANCE:.0%} of the loss at the start over {len(difference)} steps"
        if passed
        else f"loss {abs(means[worst]):.3g} {direction} than before from step {where} on "
        f"(tolerance {margin:.2g}, chance {CHANCE * errors[worst]:.2g})"
    )
    return Quality(
        method="loss_path",
        passed=passed,
        largest_loss_difference=float(np.abs(difference).max()),
        steps=len(difference),
        margin=margin,
        detail=detail,
    )


def error_of_mean(window: Array) -> float:
    """Standard error of a window's mean; neighbours are alike, so from the means of four stretches."""
    if len(window) < 8:
        return float(np.std(window) / np.sqrt(max(len(window), 1)))
    means = [stretch.mean() for stretch in np.array_split(window - _trend(window), 4)]
    return float(max(np.std(means, ddof=1) / 2.0, np.std(window - _trend(window)) / np.sqrt(len(window))))


def _trend(window: Array) -> Array:
    """Straight line through a window: a difference that grows steadily is a finding, not chance."""
    x = np.arange(len(window), dtype=np.float64)
    return np.asarray(np.polyval(np.polyfit(x, window, 1), x))
