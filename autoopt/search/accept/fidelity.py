"""Whether two plans train the same: gradients, updates and weights of their probes, compared.

Each figure is in units of what training is made of anyway. An error of the gradient is divided by the spread of
gradients between batches: unbiased and small beside that spread, it is a little more of the noise that every step
has. A change of weights is divided by one step's update. Bounds and simulations: ``docs/explanation/quality.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ERROR, BIAS, SLOPE = 0.2, 0.1, 0.02
"""Largest error and bias of the gradient, over its spread between batches, and deviation of its length, that count as
the same training but for rounding."""

GROSS_ERROR, GROSS_SLOPE = 0.7, 0.1
"""From here on another gradient is computed: a finding, not a doubt."""

LEAST_SPREAD = 0.1
"""Spread between batches, over the gradient itself, that is taken where they are more alike, or all the same one: a
training on all its samples at once has no noise that an error could be small beside."""

TENSOR_ERROR = 0.5
_NEGLIGIBLE = 1e-3
"""A tensor whose part of the squared spread is less than this is not judged on its own."""

UPDATE = 1e-3
"""Largest difference of the optimizer's update from equal gradients, over that update."""

MOVED = 0.3
"""Largest difference of weights over one step's update in trainings that are the same to rounding."""


@dataclass(frozen=True)
class Arrays:
    """The arrays of a probe; coordinates in the last dimension.

    ``scale``: elements that a coordinate stands for; ``tensor``: index of the parameter it belongs to.
    ``gradients``: by point, (batches, coordinates). ``draws``: pairs of the same batch under two seeds.
    """

    names: tuple[str, ...]
    scale: Array
    tensor: NDArray[np.int64]
    weights: Array
    gradients: tuple[Array, ...]
    draws: Array | None
    updates: Array | None

    @staticmethod
    def read(path: Path | str) -> Arrays:
        """From the file that a probe wrote."""
        with np.load(path, allow_pickle=False) as file:
            counts, sizes = file["counts"], file["sizes"]
            points = sorted(name for name in file.files if name.startswith("gradients"))
            return Arrays(
                names=tuple(str(name) for name in file["names"]),
                scale=np.repeat(sizes / np.maximum(counts, 1), counts),
                tensor=np.repeat(np.arange(len(counts)), counts),
                weights=file["weights"].astype(np.float64),
                gradients=tuple(file[name].astype(np.float64) for name in points),
                draws=file["draws"].astype(np.float64) if "draws" in file.files else None,
                updates=file["updates"].astype(np.float64) if "updates" in file.files else None,
            )

    def alike(self, other: Arrays) -> bool:
        """Whether both are of the same parameters in the same order, under whatever names."""
        return len(self.names) == len(other.names) and bool(np.array_equal(self.scale, other.scale))

    def norm(self, values: Array) -> Array:
        """Estimated length of the whole vectors that these coordinates are sampled from."""
        return np.asarray(np.sqrt((self.scale * np.square(values)).sum(axis=-1)))


@dataclass(frozen=True)
class GradientFidelity:
    """The candidate's gradients beside the incumbent's at one set of weights.

    Args:
        error: root mean square of their difference over the spread between batches (``LEAST_SPREAD`` of the gradient
            at least); infinite where the incumbent's is zero and the candidate's is not.
        bias: the part of it that all batches share, over the same spread.
        slope: length of the candidate's along the incumbent's (1: the same).
        worst: ``error`` of the parameter in which it is largest, over that parameter's own spread, and its name.
        missing: a parameter that has no gradient under the candidate; empty where each has.
    """

    error: float
    bias: float
    slope: float
    worst: float = 0.0
    worst_name: str = ""
    missing: str = ""
    finite: bool = True

    @property
    def same(self) -> bool:
        """Small beside the noise of minibatches, without bias, in every parameter."""
        return (
            self.finite
            and not self.missing
            and self.error <= ERROR
            and self.bias <= BIAS
            and abs(self.slope - 1) <= SLOPE
            and self.worst <= TENSOR_ERROR
        )

    @property
    def another(self) -> bool:
        """Certainly another gradient."""
        return bool(self.missing) or self.error > GROSS_ERROR or abs(self.slope - 1) > GROSS_SLOPE

    @property
    def text(self) -> str:
        if self.missing:
            return f"{self.missing} gets no gradient"
        if not self.finite:
            return "gradients are not finite"
        return f"error {self.error:.2g}, bias {self.bias:.2g} of the spread between batches, length {self.slope:.3f}"


def gradient_fidelity(arrays: Arrays, before: Array, after: Array) -> GradientFidelity:
    """Compares gradients of the same batches at the same weights.

    Args:
        arrays: which coordinates they are.
        before, after: of incumbent and candidate, (batches, coordinates); three batches or more.
    """
    count = min(len(before), len(after))
    before, after = before[:count], after[:count]
    has, still = np.isfinite(before).all(axis=0), np.isfinite(after).all(axis=0)
    gone = np.isnan(after).all(axis=0) & has
    if gone.any():
        name = arrays.names[arrays.tensor[int(np.argmax(gone))]]
        return GradientFidelity(np.inf, np.inf, 0.0, missing=name)
    if (has & ~still).any():
        return GradientFidelity(np.inf, np.inf, 1.0, finite=False)
    scale = np.where(has & still, arrays.scale, 0.0)
    before, after = np.nan_to_num(before), np.nan_to_num(after)
    length = scale * np.square(before).mean(axis=0)
    if not length.any():  # a loss that is constant, at these weights
        return GradientFidelity(0.0, 0.0, 1.0) if not after.any() else GradientFidelity(np.inf, np.inf, np.inf)
    difference = after - before
    spread = _by_tensor(arrays, scale * before.var(axis=0, ddof=1))
    spread = np.maximum(spread, LEAST_SPREAD**2 * _by_tensor(arrays, length))
    whole = float(spread.sum())
    square = scale * np.square(difference).mean(axis=0)
    shared = scale * (np.square(difference.mean(axis=0)) - difference.var(axis=0, ddof=1) / count)
    worst, name = _worst(arrays, _by_tensor(arrays, square), spread, whole)
    return GradientFidelity(
        error=float(np.sqrt(square.sum() / whole)),
        bias=float(np.sqrt(max(shared.sum(), 0.0) / whole)),
        slope=float((scale * before * after).mean(axis=0).sum() / length.sum()),
        worst=worst,
        worst_name=name,
    )


def _by_tensor(arrays: Arrays, values: Array) -> Array:
    """Sums over the coordinates of each parameter."""
    return np.asarray(np.bincount(arrays.tensor, values, len(arrays.names)), dtype=np.float64)


def _worst(arrays: Arrays, errors: Array, spreads: Array, whole: float) -> tuple[float, str]:
    """The parameter whose error is largest beside its own spread, of those that matter; all by parameter, squared."""
    matters = (spreads > _NEGLIGIBLE * whole) | (errors > _NEGLIGIBLE * whole)
    if not matters.any():
        return 0.0, ""
    ratios = np.where(matters, np.sqrt(errors / np.maximum(spreads, _NEGLIGIBLE * whole)), 0.0)
    index = int(np.argmax(ratios))
    return float(ratios[index]), arrays.names[index]


def update_difference(before: Arrays, after: Arrays) -> float | None:
    """Largest difference of an optimizer's update from equal gradients, over the incumbent's; None without updates."""
    if before.updates is None or after.updates is None:
        return None
    count = min(len(before.updates), len(after.updates))
    difference = before.norm(after.updates[:count] - before.updates[:count])
    size = before.norm(before.updates[:count])
    rounding = 2.0**-22 * before.norm(before.weights[0])  # what adding to the weights rounds away
    return float(np.max(np.maximum(difference - rounding, 0.0) / np.maximum(size, 1e-3 * size.max() + 1e-300)))


def weight_difference(before: Arrays, after: Arrays) -> Array:
    """How far the weights of both are apart after each step, over the incumbent's update in a step (median)."""
    count = min(len(before.weights), len(after.weights))
    steps = before.norm(np.diff(before.weights[:count], axis=0))
    apart = before.norm(after.weights[:count] - before.weights[:count])
    return np.asarray(apart[1:] / max(float(np.median(steps)), 1e-300))


def standing_still(before: Arrays, after: Arrays, allowed: tuple[int, ...] = ()) -> tuple[int, str] | None:
    """The first step, with a parameter, in which the candidate's weights stay although the incumbent's move.

    Args:
        allowed: steps that a gradient scaler left out.
    """
    count = min(len(before.weights), len(after.weights))
    moved = np.diff(before.weights[:count], axis=0) != 0
    stays = np.diff(after.weights[:count], axis=0) == 0
    tensors = len(before.names)
    for step in range(count - 1):
        if step in allowed:
            continue
        moving = np.bincount(before.tensor, moved[step], tensors)
        sampled = np.bincount(before.tensor, minlength=tensors)
        still = np.bincount(before.tensor, stays[step], tensors)
        found = (moving > 0.5 * sampled) & (still == sampled)
        if found.any():
            return step, before.names[int(np.argmax(found))]
    return None


def draws_ratio(before: Arrays, after: Arrays) -> float | None:
    """Spread of gradients under other draws (dropout), the candidate's over the incumbent's; None where none draws."""
    if before.draws is None or after.draws is None:
        return None
    usual = float(before.norm(np.nan_to_num(before.draws)).mean())
    one = float(before.norm(np.nan_to_num(before.draws[::2] - before.draws[1::2])).mean())
    other = float(before.norm(np.nan_to_num(after.draws[::2] - after.draws[1::2])).mean())
    if one <= 1e-4 * usual:
        return None if other <= 0.05 * usual else float("inf")
    return other / one
