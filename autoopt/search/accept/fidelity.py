"""Whether two plans train the same: gradients, updates, weights and buffers of their probes, compared.

An error of the gradient has two parts. What each batch has for itself is noise: relative to the spread between batches,
an error e raises the variance of the gradient by 1 + e^2, and the steps to a loss by as much at most (McCandlish et
al., "An empirical model of large-batch training", arXiv:1812.06162, section 2.2). That is a price. What all batches
share is a bias: it does not average out over steps, so it is held against the mean gradient. Steps grow by at most
1 / (1 - b^2) with a bias of b times the mean gradient (Ajalloeian and Stich, "On the convergence of SGD with biased
gradients", arXiv:2008.00051, theorem 4). Rates of both rules on simulated gradients: ``docs/explanation/quality.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import ceil, inf, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autoopt.records import Estimate
from autoopt.search.compare.statistics import student_reach

Array = NDArray[np.float64]

BIAS = 0.2
"""Largest bias of the gradient, over the mean gradient, that counts as rounding: it costs at most 4 % of the steps, and
turns the mean gradient by 12 degrees at most."""

SLOPE = 0.02
"""Largest deviation of the gradient's length, beyond what its scatter explains: as much as another learning rate."""

GROSS_ERROR, GROSS_SLOPE = 0.7, 0.1
"""From here on another gradient is computed: a finding, not a doubt. Its noise would cost half as many steps again."""

LEAST_SPREAD = 0.1
"""Spread between batches, over the gradient itself, that is taken where they are more alike, or all the same one: a
training on all its samples at once has no noise to compare an error with."""

TENSOR_ERROR = 1.0
_NEGLIGIBLE = 1e-3
"""Largest error of one parameter over its own spread: its noise is doubled then. One whose part of the squared spread
is less than a thousandth is not judged on its own."""

UPDATE = 1e-3
"""Largest difference of the optimizer's update from equal gradients, over that update."""

MOVED = 0.3
"""Largest difference of weights over one step's update in trainings that are the same to rounding."""

UNFELT = 2.0**-16
"""Gradient of a parameter, over that of all, that sums in float32 leave where it is zero: some 2**-23 for each term."""

PARTED = 4.0
"""Errors of a gradient, each over the spread, by which weights may part in a step: a step of Adam from a new state is a
sign, so that a tenth of the coordinates turned is more than half a step."""

BUFFERS = 0.3
"""Largest difference of the changes of a buffer (running statistics), over these, that rounding explains."""

BUFFER_STEPS = 16
"""Steps of a window in which buffers are compared: later, weights may have parted by rounding."""

UNKNOWN_STEPS = 10_000
"""Length of a planned run that nobody has reported: noise of a hundredth of the batch spread is left of one so long."""

NO_PENALTY = Estimate(value=1.0, low=1.0, high=1.0, n=1)


@dataclass(frozen=True)
class Arrays:
    """The arrays of a probe; coordinates in the last dimension.

    ``scale``: elements that a coordinate stands for; ``tensor``: index of the parameter it belongs to. ``gradients``:
    by point, (batches, coordinates). ``draws``: pairs of the same batch under two seeds. ``windows``: weights after
    each of some steps in a row, (steps + 1, coordinates), by the window's name. ``buffers``: values of the model's
    buffers in the same way, (steps + 1, values); ``buffer_names``: of the buffer that each is of.
    """

    names: tuple[str, ...]
    scale: Array
    tensor: NDArray[np.int64]
    weights: Array
    gradients: tuple[Array, ...]
    draws: Array | None
    updates: Array | None
    windows: dict[str, Array] = field(default_factory=dict)
    buffers: dict[str, Array] = field(default_factory=dict)
    buffer_names: tuple[str, ...] = ()

    @staticmethod
    def read(path: Path | str) -> Arrays:
        """From the file that a probe wrote."""
        with np.load(path, allow_pickle=False) as file:
            counts, sizes = file["counts"], file["sizes"]
            points = sorted(name for name in file.files if name.startswith("gradients"))

            def named(prefix: str) -> dict[str, Array]:
                return {n.removeprefix(prefix): file[n].astype(np.float64) for n in file.files if n.startswith(prefix)}

            return Arrays(
                names=tuple(str(name) for name in file["names"]),
                scale=np.repeat(sizes / np.maximum(counts, 1), counts),
                tensor=np.repeat(np.arange(len(counts)), counts),
                weights=file["weights"].astype(np.float64),
                gradients=tuple(file[name].astype(np.float64) for name in points),
                draws=file["draws"].astype(np.float64) if "draws" in file.files else None,
                updates=file["updates"].astype(np.float64) if "updates" in file.files else None,
                windows=named("window_"),
                buffers=named("buffers_"),
                buffer_names=tuple(str(name) for name in file["buffer_names"]) if "buffer_names" in file.files else (),
            )

    def alike(self, other: Arrays) -> bool:
        """Whether both are of the same parameters in the same order, under whatever names."""
        return len(self.names) == len(other.names) and bool(np.array_equal(self.scale, other.scale))

    def norm(self, values: Array) -> Array:
        """Estimated length of the whole vectors that these coordinates are sampled from."""
        return np.asarray(np.sqrt((self.scale * np.square(values)).sum(axis=-1)))

    @property
    def drawn(self) -> float:
        """Spread of a batch's gradient under other draws (dropout), over that between batches; 0 where none are. A
        change of layout or precision fills the same mask in another order, and trains with other draws."""
        batches = next((each for each in self.gradients if len(each) > 1), None)
        if self.draws is None or batches is None:
            return 0.0
        between = np.square(self.norm(np.nan_to_num(batches - batches.mean(axis=0)))).sum() / (len(batches) - 1)
        within = self.between_draws(self.draws).mean() / 2
        return float(np.sqrt(within / between)) if between > 0 else 0.0

    def between_draws(self, draws: Array) -> Array:
        """Squared difference of the gradients of each batch under two draws."""
        count = len(draws) // 2 * 2
        return np.square(self.norm(np.nan_to_num(draws[:count:2] - draws[1:count:2])))

    def draws_otherwise(self, other: Arrays) -> bool:
        """Whether another plan's draws (dropout) from the same seed are others: as far apart as those of two seeds."""
        if self.draws is None or other.draws is None or not self.alike(other):
            return False
        count = min(len(self.draws), len(other.draws))
        apart = np.square(self.norm(np.nan_to_num(other.draws[:count] - self.draws[:count])))
        return bool(2 * apart.mean() > self.between_draws(self.draws).mean())

    def turned(self, other: Arrays) -> float:
        """How far steps by the signs of two plans' gradients of the same batches are apart, over their length: such
        steps an optimizer begins with that divides by the gradient's size. They turn with each small gradient, however
        small the error of all is together."""
        felt, apart, length = self.felt(), 0.0, 0.0
        for one, two in zip(self.gradients, other.gradients, strict=False):
            count = min(len(one), len(two))
            signs, others = (np.sign(np.nan_to_num(each[:count])) for each in (one, two))
            apart += float(np.square(felt.norm(signs - others)).sum())
            length += float(np.square(felt.norm(signs)).sum())
        return sqrt(apart / length) if length else 0.0

    def felt(self) -> Arrays:
        """With a scale of zero for parameters whose gradient is nothing but rounding, such as the bias of a layer
        before batch normalization. An optimizer that divides by the gradient's size moves it at random, and the loss
        does not change."""
        square = sum(np.square(np.nan_to_num(each)).mean(axis=0) for each in self.gradients if len(each))
        if not np.any(square):
            return self
        usual = float((self.scale * square).sum() / self.scale.sum())
        sampled = np.maximum(_by_tensor(self, np.ones_like(self.scale)), 1)
        of_each = _by_tensor(self, square * np.ones(len(self.scale))) / sampled
        return replace(self, scale=np.where(of_each[self.tensor] > UNFELT**2 * usual, self.scale, 0.0))


@dataclass(frozen=True)
class MeanSquare:
    """The squared length of a mean vector, without the bias that the scatter of few samples gives it.

    Args:
        value: a U-statistic, the mean product of two different samples: it may be negative.
        error: its standard error, by leaving out one sample at a time.
        samples: how many vectors there were.
    """

    value: float
    error: float
    samples: int

    @staticmethod
    def of(vectors: Array) -> MeanSquare:
        """Of the mean of vectors, (samples, coordinates); three of them at least."""
        n = len(vectors)
        if n < 3:
            return MeanSquare(float(np.square(vectors.mean(axis=0)).sum()), inf, n)
        products = vectors @ vectors.T
        np.fill_diagonal(products, 0.0)
        total, each = products.sum(), products.sum(axis=1)
        without = (total - 2 * each) / ((n - 1) * (n - 2))
        error = sqrt((n - 1) / n * float(np.square(without - without.mean()).sum()))
        return MeanSquare(float(total) / (n * (n - 1)), error, n)

    @property
    def reach(self) -> float:
        return student_reach(max(self.samples - 1, 1)) * self.error

    @property
    def high(self) -> float:
        return max(self.value + self.reach, 0.0)

    @property
    def low(self) -> float:
        return max(self.value - self.reach, 0.0)


@dataclass(frozen=True)
class GradientFidelity:
    """The candidate's gradients next to the incumbent's at one set of weights.

    Args:
        error: root mean square of their difference over the spread between batches (``LEAST_SPREAD`` of the gradient
            at least); infinite where the incumbent's is zero and the candidate's is not.
        bias: the part of it that all batches share, over the same spread.
        slope: length of the candidate's along the incumbent's (1: the same); ``slope_error``: its standard error.
        worst: ``error`` of the parameter in which it is largest, over that parameter's own spread, and its name.
        missing: a parameter that has no gradient under the candidate; empty where each has.
        bias_bound: upper bound of the bias over the mean gradient, or over what the noise of the planned run leaves of
            it, if that is larger.
        penalty: factor on the steps that the error costs.
        batches: of which both gradients were taken; ``wanted``: how many would bring the bound below ``BIAS`` if it
            stays as it was seen; None where none would.
    """

    error: float
    bias: float
    slope: float
    slope_error: float = 0.0
    worst: float = 0.0
    worst_name: str = ""
    missing: str = ""
    finite: bool = True
    bias_bound: float = 0.0
    penalty: Estimate = NO_PENALTY
    batches: int = 0
    wanted: int | None = None

    @property
    def same(self) -> bool:
        """Without bias, as far as batches tell: what is left costs steps and no more."""
        return self.clean and self.bias_bound <= BIAS

    @property
    def clean(self) -> bool:
        """Whether nothing but the bound of the bias may speak against it."""
        close = abs(self.slope - 1) <= SLOPE + 2 * self.slope_error and self.worst <= TENSOR_ERROR
        return self.finite and not self.another and close

    @property
    def another(self) -> bool:
        """Certainly another gradient."""
        off = abs(self.slope - 1) > GROSS_SLOPE + 2 * self.slope_error
        return bool(self.missing) or self.error > GROSS_ERROR or off

    @property
    def text(self) -> str:
        if self.missing:
            return f"{self.missing} gets no gradient"
        if not self.finite:
            return "gradients are not finite"
        bias = f"bias at most {self.bias_bound:.2g} of the mean gradient"
        return f"error {self.error:.2g} of the spread between batches, {bias}, length {self.slope:.3f}"


def gradient_fidelity(arrays: Arrays, before: Array, after: Array, steps: int = UNKNOWN_STEPS) -> GradientFidelity:
    """Compares gradients of the same batches at the same weights.

    Args:
        arrays: which coordinates they are.
        before, after: of incumbent and candidate, (batches, coordinates); three batches or more. The incumbent may
            have more: they tell its mean gradient.
        steps: of the planned run. Noise of the size s averages to s / sqrt(steps) over it, so that a bias which is
            small next to that is as small next to the difference between two seeds, however small the mean gradient is.
    """
    whole, count = before, min(len(before), len(after))
    before, after = before[:count], after[:count]
    has, still = np.isfinite(whole).all(axis=0), np.isfinite(after).all(axis=0)
    gone = np.isnan(after).all(axis=0) & has
    if gone.any():
        name = arrays.names[arrays.tensor[int(np.argmax(gone))]]
        return GradientFidelity(inf, inf, 0.0, missing=name)
    if (has & ~still).any():
        return GradientFidelity(inf, inf, 1.0, finite=False)
    scale = np.where(has & still, arrays.scale, 0.0)
    before, after = np.nan_to_num(before), np.nan_to_num(after)
    length = scale * np.square(before).mean(axis=0)
    if not length.any():  # a loss that is constant, at these weights
        zero = not after.any()
        return GradientFidelity(0.0, 0.0, 1.0) if zero else GradientFidelity(inf, inf, inf, bias_bound=inf)
    difference = after - before
    noise = _by_tensor(arrays, scale * before.var(axis=0, ddof=1))
    spread = np.maximum(noise, LEAST_SPREAD**2 * _by_tensor(arrays, length))
    square = scale * np.square(difference).mean(axis=0)
    weights = np.sqrt(scale)
    drift, mean = MeanSquare.of(weights * difference), MeanSquare.of(weights * np.nan_to_num(whole))
    floor = float(noise.sum()) / max(steps, 1)
    if noise.sum() < LEAST_SPREAD**2 * length.sum():  # all batches are alike: their mean is known as it is
        drift = MeanSquare(float((scale * np.square(difference.mean(axis=0))).sum()), 0.0, count)
        mean = MeanSquare(float((scale * np.square(before.mean(axis=0))).sum()), 0.0, count)
    reference = max(mean.low, floor)
    worst, name = _worst(arrays, _by_tensor(arrays, square), spread, float(spread.sum()))
    products, lengths = (scale * before * after).sum(axis=1), (scale * np.square(before)).sum(axis=1)
    slope = float(products.sum() / lengths.sum())
    left = products - slope * lengths
    # the factor on the steps that it costs: nothing at a small learning rate, 1 + e^2 where noise dominates
    squares, whole_spread = (scale * np.square(difference)).sum(axis=1), float(spread.sum())
    mean_square, reach = float(squares.mean()), student_reach(max(count - 1, 1)) * float(squares.std(ddof=1))
    most = 1 + (mean_square + reach / sqrt(count)) / whole_spread
    return GradientFidelity(
        error=float(np.sqrt(square.sum() / spread.sum())),
        bias=float(np.sqrt(max(drift.value, 0.0) / spread.sum())),
        slope=slope,
        slope_error=float(np.sqrt(np.square(left).sum() * count / max(count - 1, 1)) / lengths.sum()),
        worst=worst,
        worst_name=name,
        bias_bound=sqrt(drift.high / reference) if drift.high else 0.0,
        penalty=Estimate(value=1 + mean_square / whole_spread, low=1.0, high=most, n=count),
        batches=count,
        wanted=_batches_wanted(drift, mean, floor),
    )


def _batches_wanted(drift: MeanSquare, mean: MeanSquare, floor: float) -> int | None:
    """Batches from which the bias would be below its bound if both are as they were seen; None where none would do.
    Standard errors of these statistics fall as one over the number of samples where the mean is small."""
    n = min(drift.samples, mean.samples)
    if not np.isfinite(drift.reach + mean.reach):
        return None
    by_mean = (max(mean.value, 0.0) - max(drift.value, 0.0) / BIAS**2, mean.reach + drift.reach / BIAS**2)
    by_noise = (floor - max(drift.value, 0.0) / BIAS**2, drift.reach / BIAS**2)
    found = [n * reach / room for room, reach in (by_mean, by_noise) if room > 0]
    return max(ceil(min(found)), n) if found else None


def _by_tensor(arrays: Arrays, values: Array) -> Array:
    """Sums over the coordinates of each parameter."""
    return np.asarray(np.bincount(arrays.tensor, values, len(arrays.names)), dtype=np.float64)


def _worst(arrays: Arrays, errors: Array, spreads: Array, whole: float) -> tuple[float, str]:
    """The parameter whose error is largest next to its own spread, of those that matter; all by parameter, squared."""
    matters = (spreads > _NEGLIGIBLE * whole) | (errors > _NEGLIGIBLE * whole)
    if not matters.any():
        return 0.0, ""
    ratios = np.where(matters, np.sqrt(errors / np.maximum(spreads, _NEGLIGIBLE * whole)), 0.0)
    index = int(np.argmax(ratios))
    return float(ratios[index]), arrays.names[index]


LARGE = 2
"""Of the updates, the last so many are from large gradients (``autoopt.benchmark.probe``)."""


def update_difference(before: Arrays, after: Arrays) -> float | None:
    """Largest difference of an optimizer's update from equal gradients, over the incumbent's; None without updates.
    Those from large gradients are held against each other alone: they would hide what the small ones show."""
    if before.updates is None or after.updates is None:
        return None
    count = min(len(before.updates), len(after.updates))
    parts = [slice(0, count - LARGE), slice(count - LARGE, count)] if count > LARGE else [slice(0, count)]
    rounding = 2.0**-22 * before.norm(before.weights[0])  # what adding to the weights rounds away
    found = []
    for part in parts:
        one, other = before.updates[part], after.updates[part]
        difference, size = before.norm(other - one), before.norm(one)
        found.append(np.maximum(difference - rounding, 0.0) / np.maximum(size, 1e-3 * size.max() + 1e-300))
        rounding = rounding + 2.0**-22 * size.max()
    return float(max(values.max() for values in found))


def weight_difference(before: Arrays, after: Arrays, window: str = "") -> Array:
    """How far the weights of both are apart after each step, over the incumbent's update in a step (median): of the
    recorded steps, or of those of a window."""
    one, other = (each.windows.get(window, np.zeros(0)) if window else each.weights for each in (before, after))
    count, felt = min(len(one), len(other)), before.felt()
    if count < 2:
        return np.zeros(0)
    steps, apart = felt.norm(np.diff(one[:count], axis=0)), felt.norm(other[:count] - one[:count])
    return np.asarray(apart[1:] / max(float(np.median(steps)), 1e-300))


def parted_at_once(
    before: Arrays, after: Arrays, error: float, rounded: Callable[[], Arrays | None] = lambda: None
) -> tuple[int, float] | None:
    """The first recorded step in which both part far more than in any step before, and by how much of a step.

    Rounding takes trainings apart by and by; a momentum that is forgotten, or a step that is left out, does at once.

    Args:
        error: of the gradient, over its spread, or of a step by its signs: what a step parts by anyway.
        rounded: the incumbent's from weights a rounding apart; asked where both part by more.
    """
    parted = _parted_in_steps(before, after)
    usual = np.maximum.accumulate(np.concatenate([[error], parted[:-1]]))[: len(parted)]
    if (parted > MOVED + PARTED * usual).any() and (again := rounded()) is not None:
        by_rounding = _parted_in_steps(before, again)[: len(parted)]
        usual[: len(by_rounding)] = np.maximum(by_rounding, error)
    at = np.flatnonzero(parted > MOVED + PARTED * usual)
    return (int(at[0]), float(parted[at[0]])) if len(at) else None


def _parted_in_steps(before: Arrays, after: Arrays) -> Array:
    """How far both part in each recorded step, over the incumbent's update in it."""
    count, before = min(len(before.weights), len(after.weights)), before.felt()
    steps, others = np.diff(before.weights[:count], axis=0), np.diff(after.weights[:count], axis=0)
    sizes = before.norm(steps)
    least = 1e-3 * np.median(sizes) + 1e-300 if len(sizes) else 0.0
    return np.asarray(before.norm(others - steps) / np.maximum(sizes, least))


def parted_across_epochs(before: Arrays, after: Arrays) -> float:
    """The largest of these distances in the steps across the end of an epoch, which begin at the same weights."""
    return float(weight_difference(before, after, "epoch").max(initial=0.0))


def standing_still(
    before: Array, after: Array, arrays: Arrays, allowed: tuple[int, ...] = ()
) -> tuple[int, str] | None:
    """The first step, but for those that a scaler left out, with a parameter, in which the candidate's weights stay
    although the incumbent's move; both are (steps + 1, coordinates)."""
    count = min(len(before), len(after))
    moved, stays = np.diff(before[:count], axis=0) != 0, np.diff(after[:count], axis=0) == 0
    sampled = _by_tensor(arrays, np.ones(len(arrays.tensor)))
    for step in (step for step in range(count - 1) if step not in allowed):
        moving, still = _by_tensor(arrays, moved[step]), _by_tensor(arrays, stays[step])
        found = (moving > 0.5 * sampled) & (still == sampled)
        if found.any():
            return step, arrays.names[int(np.argmax(found))]
    return None


def draws_ratio(before: Arrays, after: Arrays) -> tuple[float, float] | None:
    """Spread of gradients under other draws (dropout), the candidate's over the incumbent's, and its relative error;
    None where neither draws, infinite where the candidate alone does."""
    drawn = [each.draws for each in (before, after) if each.draws is not None]
    if len(drawn) < 2 or not before.alike(after):
        return None
    count = min(len(each) for each in drawn)
    one, other = (before.between_draws(each[:count]) for each in drawn)
    usual = float(before.norm(np.nan_to_num(drawn[0])).mean())
    if sqrt(float(one.mean())) <= 1e-4 * usual:
        return None if sqrt(float(other.mean())) <= 0.05 * usual else (inf, 0.0)
    ratio = float(other.sum() / one.sum())
    if len(one) < 3:
        return sqrt(ratio), inf
    error = float(np.sqrt(np.square(other - ratio * one).sum() * len(one) / (len(one) - 1)) / one.sum())
    return sqrt(ratio), student_reach(len(one) - 1) * error / ratio / 2


def buffers_apart(before: Arrays, after: Arrays, windows: tuple[str, ...] = ("start",)) -> tuple[float, str] | None:
    """How far the changes of buffers, step by step, differ from the incumbent's, over these; and in which the most.

    Infinite where one that moves in the incumbent's training stays as it is, or is gone. None where none moves.
    ``windows``: in which both trained on the same batches.
    """
    found: list[tuple[float, str]] = []
    for name, values, others in _buffers(before, after, windows):
        one, other = np.diff(values, axis=0), np.diff(others, axis=0)
        way = float(np.linalg.norm(one))
        if way == 0.0:
            continue
        if one.shape != other.shape or not other.any():
            return inf, name
        found.append((float(np.linalg.norm(other - one)) / way, name))
    return max(found, default=None)


def buffers_apart_at_once(before: Arrays, after: Arrays) -> tuple[float, str] | None:
    """The same of the first step alone, whose weights are the same: a step later they may have parted by rounding. A
    script is seen from the end of that step on, a ``build()`` from before it."""
    found: list[tuple[float, str]] = []
    for name, values, others in _buffers(before, after, ("start",)):
        if min(len(values), len(others)) < 2 or values.shape[1:] != others.shape[1:]:
            continue
        seen = 0 if (values[0] != others[0]).any() else 1
        way = float(np.linalg.norm(values[1] - values[0]))
        if way > 0.0:
            found.append((float(np.linalg.norm(others[seen] - values[seen])) / way, name))
    return max(found, default=None)


def _buffers(before: Arrays, after: Arrays, windows: tuple[str, ...]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Each buffer of both with its values after each step of a window, no more than are compared."""
    mine, theirs = np.array(before.buffer_names), np.array(after.buffer_names)
    if sorted(mine) != sorted(theirs) and len(mine) == len(theirs):  # wrapped layers: the same buffers by other names
        theirs = mine
    for window in windows:
        values, others = before.buffers.get(window), after.buffers.get(window)
        if values is None or others is None:
            continue
        steps = min(len(values), len(others), BUFFER_STEPS + 1)
        for name in dict.fromkeys(before.buffer_names):
            yield name, values[:steps, mine == name], others[:steps, theirs == name]
