"""The quality level of a plan from two probes, within seconds and without a whole training.

First what is certainly another training: other data, another schedule, other updates, another evaluation. Each is a
sentence. Then whether gradients, updates, weights and buffers are the same, or the same but for rounding.
"""

from __future__ import annotations

from decimal import Decimal
from math import hypot, inf, isclose, isfinite, isinf, sqrt
from typing import Any

from autoopt.records import Objective, Quality
from autoopt.records.messages import Probe
from autoopt.search.accept.data import DataCompared, ProbeResult, other_order
from autoopt.search.accept.fidelity import (
    BIAS,
    BUFFERS,
    MOVED,
    PARTED,
    UNKNOWN_STEPS,
    UPDATE,
    Arrays,
    GradientFidelity,
    buffers_apart,
    buffers_apart_at_once,
    draws_ratio,
    gradient_fidelity,
    parted_across_epochs,
    parted_at_once,
    standing_still,
    update_difference,
    weight_difference,
)
from autoopt.search.accept.losses import common, same_on_average, same_to_rounding
from autoopt.search.compare.comparison import LossPath
from autoopt.strategy import Risk

GROSS_UPDATE = 0.02
"""From here on another update is made of the same gradients: a finding, not a doubt."""

_DRAWS = 0.2
"""Deviation of the spread of gradients under other draws from which on it is another dropout, beyond its error."""

_FEW_DRAWS = (0.4, 2.5)
"""The ratio of these spreads that the draws of one batch leave open."""

FLIPPED = 3
"""Samples of an evaluation that rounding may turn at a middle of the training: of a few hundred, two of them are more
than a tolerance of half a per cent."""

MIDDLE = 2.0
"""Tolerances by which rounding may move a metric at weights before the last. Its size is that of the largest: few of an
untrained model's answers are right, and hardly any of them are sure. What counts is the end."""

BATCHES = "the batches of the same steps"
"""What a verdict rests on that other data have lost."""

METRIC_ROUNDING = 1e-5
"""Relative difference of a metric that sums in float32 give it, added up in another order."""

_ROUNDING_ERROR = 1e-3
"""Error of a gradient, over its spread between batches, that rounding alone explains in float32."""


def level_of(
    risk: Risk,
    before: ProbeResult,
    after: ProbeResult,
    objective: Objective,
    *,
    deterministic: bool | None = True,
    epsilon: float = 2.0**-23,
    rounded_off: float = 2.0**-23,
    planned_steps: int | None = None,
) -> Quality:
    """The quality level that two probes show of the candidate's training next to the incumbent's.

    Args:
        risk: ``exact`` or ``numeric``; others train otherwise by intention and are not known from a probe.
        deterministic: the dataset gives the same sample twice.
        epsilon: rounding of the arithmetic of both.
        rounded_off: what the candidate's arithmetic rounds off, by which the incumbent may begin apart from itself.

    Returns:
        ``passed`` True with its level; False where it is certainly another training; None, level ``undecided``,
            else.
    """
    data = DataCompared.of(before, after, deterministic)
    lost = data.lost or another_training(risk, before, after, objective)
    if lost:
        rests_on = BATCHES if data.lost else ""
        return Quality(method="probe", passed=False, steps=after.probe.steps, detail=lost, rests_on=rests_on)
    if data.until is not None:
        before, after = before.cut(data.until), after.cut(data.until)
    points = _points(before, after, planned_steps or UNKNOWN_STEPS, alike=data.alike)
    found = _Found(before, after, points)
    others = not _same_samples(before.probe, after.probe)  # whose draws may be others, too
    for number, point in enumerate(points):
        if point.another and not data.alike and not others:
            where = ("at the start", "in the middle", "at the end")[min(number, 2)]
            return found.quality(None, f"another gradient {where} of the training: {point.text}", passed=False)
    update = update_difference(before.arrays, after.arrays)
    seen = bool(points) or risk is Risk.EXACT  # what may round is not judged by losses and weights of a few steps alone
    seen = seen and data.until is None
    identical = _identical(before, after, points, deterministic, epsilon) if seen else ""
    if identical and (update is None or update <= UPDATE):
        drawn = deterministic is False and before.probe.digests != after.probe.digests
        return found.quality("equivalent" if drawn else "identical", identical, passed=True)
    doubt, part = _doubt(before, after, points, update, rounded_off), before.probe.unseen or after.probe.unseen
    unseen = (f"; the samples' order could not be checked ({part} not seen)" if part else "") + data.note
    if doubt:
        return found.quality("undecided", doubt + unseen, passed=None)
    worst = max(points, key=lambda point: point.bias_bound)
    at = f"{worst.text} at worst of {_points_text(len(points), before.probe)} of {worst.batches} batches"
    charged = found.penalty is not None and found.penalty.value >= 1.005  # shown where it is a per cent or nearly one
    price = f", charged as {found.penalty.value - 1:.1%} more steps" if found.penalty is not None and charged else ""
    detail = f"the same training but for rounding: {at}, equal updates{price}{unseen}"
    return found.quality("equivalent", detail, passed=True)


def _points_text(points: int, before: Probe) -> str:
    """The sets of weights at which gradients were compared, in words."""
    text = f"{points} points" if points > 1 else "one point"
    return f"{text} in its first {before.own_steps} steps" if before.own_steps else text


class _Found:
    """What a level's document says besides the level: figures, what it rests on, and what it would have missed."""

    def __init__(self, before: ProbeResult, after: ProbeResult, points: list[GradientFidelity]) -> None:
        self._before, self._after, self._points = before, after, points
        self._finite = [point for point in points if isfinite(point.error)]
        self.penalty = max((p.penalty for p in self._finite), key=lambda penalty: penalty.value, default=None)

    def quality(self, level: str | None, detail: str, *, passed: bool | None) -> Quality:
        finite = self._finite
        known: dict[str, Any] = {
            "gradient_error": max((point.error for point in finite), default=None),
            "gradient_bias": max((point.bias for point in finite), default=None),
            "bias_bound": max((p.bias_bound for p in finite if isfinite(p.bias_bound)), default=None),
            "batches": min((point.batches for point in finite), default=None),
        }
        if level in ("identical", "equivalent"):
            known |= {"rests_on": self._rests_on(), "would_miss": self._would_miss()}
        if level in ("equivalent", "undecided"):
            known["step_penalty"] = self.penalty
        open_ones = [point for point in self._points if not point.same]
        if level == "undecided" and all(point.clean and point.wanted is not None for point in open_ones):
            known["batches_wanted"] = max((point.wanted or 0 for point in open_ones), default=None)
        known |= {"level": level, "passed": passed, "steps": self._after.probe.steps, "detail": detail}
        return Quality(method="probe", **known)

    def _rests_on(self) -> str:
        probe, seen = self._after.probe, [f"the first {self._after.probe.steps} steps"]
        if "epoch" in self._both():
            seen.append("the steps across the end of an epoch")
        if "end" in self._both():
            seen.append(f"the last steps of a training of {probe.until}")
        if self._points:
            seen.append(f"gradients of {self._points[0].batches} batches at {_points_text(len(self._points), probe)}")
        if metrics_of_both(self._before.probe, probe):
            seen.append("evaluations of the same weights")
        return "; ".join(seen)

    def _would_miss(self) -> str:
        one, other = self._before.probe, self._after.probe
        read = min(len(one.epochs), len(other.epochs))
        missed = []
        if read < 2 and (one.order is None or other.order is None):
            missed.append("anything of the second epoch, which was not read")
        elif read < 2:
            missed.append("samples that change from the second epoch on, of which the order alone is known")
        epochs, read_on = self._after.probe.epochs, self._after.probe.rolled
        if "epoch" not in self._both() and (len(epochs) < 2 or read_on):  # recorded steps may go beyond an epoch
            missed.append("what the training does at the end of an epoch")
        last = min(one.trained or one.steps, other.trained or other.steps)
        missed.append(f"what the training does otherwise after step {last}")
        if not self._points:
            missed.append("rounding of gradients")
        return "; ".join(missed)

    def _both(self) -> set[str]:
        both = self._before.arrays.windows.keys() & self._after.arrays.windows.keys()
        return both & {"end", *self._before.same_windows(self._after)}


def _points(before: ProbeResult, after: ProbeResult, steps: int, *, alike: bool) -> list[GradientFidelity]:
    """Fidelity at each set of weights; empty where the parameters are not the same, or batches are of other samples.

    Where they are handed on there are no digests, and the batches are the same. Those of a script whose samples are
    made otherwise (decoded at another size) have the same labels in the same order: a probe's augmentation draws by a
    sample's index, and what it draws otherwise all the same shows as an error of the gradient. ``alike``: batches are
    the same but for what the model computed itself.
    """
    one, other = before.arrays, after.arrays
    taken = len(before.probe.gradient_digests)
    orders, others = before.probe.orders[:taken], after.probe.orders[:taken]
    same = alike or _same_samples(before.probe, after.probe) or (all(orders) and orders == others)
    if not same or not one.alike(other):
        return []
    pairs = zip(one.gradients, other.gradients, strict=False)
    return [gradient_fidelity(one, left, right, steps) for left, right in pairs if min(len(left), len(right)) >= 2]


def _same_samples(one: Probe, other: Probe) -> bool:
    """Whether gradients are of the same samples in the same order, in however many micro-batches of a step."""
    known = one.gradient_samples
    same = bool(known) and all(known) and known == other.gradient_samples
    return same or one.gradient_digests == other.gradient_digests


def _identical(
    before: ProbeResult, after: ProbeResult, points: list[GradientFidelity], deterministic: bool | None, epsilon: float
) -> str:
    """A sentence where losses, weights and buffers agree to rounding over the whole probe; else empty."""
    if not before.arrays.alike(after.arrays) or before.probe.unseen or after.probe.unseen:
        return ""
    paths = common(LossPath.of(before.probe.losses), LossPath.of(after.probe.losses))
    if paths is None:
        return ""
    steps, rounded = len(paths.steps), max(_ROUNDING_ERROR, 64 * epsilon)
    exact = all(point.error <= rounded and point.clean for point in points)
    if deterministic is False and before.probe.digests != after.probe.digests:
        if not points or not exact or not all(before.probe.orders) or not same_on_average(paths).passed:
            return ""
        labels = f"same labels in the same order over {steps} steps"
        return f"{labels} and the same gradients of the same batches; other draws of augmentation"
    if not same_to_rounding(paths, epsilon).passed or not exact:
        return ""  # losses of a short probe hide what half precision does to each gradient
    apart = weight_difference(before.arrays, after.arrays)
    same = before.same_windows(after)
    windows = parted_across_epochs(before.arrays, after.arrays) if "epoch" in same else 0.0
    buffers = buffers_apart(before.arrays, after.arrays, same)
    if not len(apart) or max(float(apart.max()), windows) > MOVED or (buffers and buffers[0] > _ROUNDING_BUFFERS):
        return ""
    held = ", weights and buffers" if buffers else " and weights"
    return f"same batches, losses{held} over {steps} steps (weights {float(apart.max()):.1g} of a step apart)"


_ROUNDING_BUFFERS = 0.02
"""Difference of a buffer's changes, over these, that rounding in float32 explains."""


def _doubt(
    before: ProbeResult, after: ProbeResult, points: list[GradientFidelity], update: float | None, rounded_off: float
) -> str:
    """Why probes do not show the same training but for rounding; empty where they do."""
    if not points:
        return "gradients could not be compared: no kept weights fit this model, a scaler, or other batches"
    odd = next((point for point in points if not point.clean), None)
    if odd is not None:
        return f"gradients differ by more than rounding would: {odd.text}, {odd.worst:.2g} in {odd.worst_name}"
    open_one = max(points, key=lambda point: point.bias_bound)
    if open_one.bias_bound > BIAS:
        bound = f"at most {open_one.bias_bound:.2g}" if open_one.bias_bound < inf else "not bounded"
        text = f"the bias is {bound} of the mean gradient by {open_one.batches} batches, where {BIAS:g} is the bound"
        if open_one.wanted is None:
            return f"gradients are biased: {text}; only trainings can tell what that does"
        return f"{text}: about {open_one.wanted} batches would tell"
    if update is None:
        return "the optimizer's update could not be compared"
    if update > UPDATE:
        return f"updates from the same gradients differ by {update:.2g} of their size"
    of_gradients = hypot(max(point.error for point in points), before.arrays.drawn)
    error = max(of_gradients, before.arrays.turned(after.arrays))

    def rounded() -> Arrays | None:
        """The incumbent's where its weights begin a rounding apart."""
        other = before.arrays.draws_otherwise(after.arrays)
        arrays = before.rounded(rounded_off, other)
        return arrays if arrays is not None and before.arrays.alike(arrays) else None

    at_once = parted_at_once(before.arrays, after.arrays, error, rounded)
    if at_once is not None:
        return f"weights part by {at_once[1]:.2g} of a step in step {at_once[0]}, and hardly before"
    if "epoch" in before.same_windows(after):
        parted = parted_across_epochs(before.arrays, after.arrays)
        usual = MOVED + PARTED * error * sqrt(max(len(before.arrays.windows.get("epoch", ())) - 1, 1))
        by_rounding = rounded() if parted > usual else None
        itself = 0.0 if by_rounding is None else parted_across_epochs(before.arrays, by_rounding)
        if parted > max(usual, PARTED * itself):
            return f"weights part by {parted:.2g} of a step across the end of an epoch, from the same start"
    first = buffers_apart_at_once(before.arrays, after.arrays)
    if first and first[0] > BUFFERS:
        return f"{first[1]} changes by {first[0]:.0%} otherwise in the first step"
    windows = before.same_windows(after)
    buffers = buffers_apart(before.arrays, after.arrays, windows)
    if buffers and buffers[0] > BUFFERS:
        by_rounding = rounded()
        own = buffers_apart(before.arrays, by_rounding, windows) if by_rounding is not None else None
        if buffers[0] > PARTED * (own[0] if own is not None else 0.0):
            return f"{buffers[1]} changes by {buffers[0]:.0%} otherwise"
    return ""


def another_training(risk: Risk, before: ProbeResult, after: ProbeResult, objective: Objective) -> str:
    """A sentence where the candidate certainly trains, or is evaluated, otherwise but for the data."""
    one, other, flipped = before.probe, after.probe, FLIPPED if risk is Risk.NUMERIC else 0
    if order := other_order(one.order, other.order):
        return order
    rates, others = ({**dict(p.rates_ahead), **dict(enumerate(p.learning_rates))} for p in (one, other))
    for place in sorted(rates.keys() & others.keys(), key=lambda place: (place < 0, abs(place))):
        left, right = rates[place], others[place]
        if abs(left - right) > 1e-6 * max(abs(left), abs(right)):
            where = f"step {place}" if place >= 0 else f"epoch {-place}"
            return f"learning rate {right:.3g} at {where} where it was {left:.3g}"
    if updates := _other_updates(before, after):
        return updates
    if len(one.dropouts) == len(other.dropouts) and one.dropouts != other.dropouts:
        left, right = next(pair for pair in zip(one.dropouts, other.dropouts, strict=True) if pair[0] != pair[1])
        return f"a dropout of {right:g} where it was {left:g}"
    if draws := draws_ratio(before.arrays, after.arrays):
        ratio, error = draws
        low, high = _FEW_DRAWS if isinf(error) else (1 - _DRAWS - error, 1 + _DRAWS + error)
        if not low <= ratio <= high:
            return f"gradients scatter {ratio:.2g} times as much under other draws (dropout)"
    windows = (*before.same_windows(after), *(["end"] if one.trained == other.trained else []))
    buffers = buffers_apart(before.arrays, after.arrays, windows)
    if buffers and isinf(buffers[0]):
        return f"{buffers[1]} stays as it is: statistics that no longer move"
    if evaluation := other_evaluation(one, other, objective, flipped):
        return evaluation
    if one.steps == other.steps and before.arrays.alike(after.arrays):
        # each plan's own weights after its recorded steps, by its own code, where these are the same
        apart, own = weight_difference(before.arrays, after.arrays), one.own_metric
        if len(apart) and float(apart.max()) <= MOVED:
            largest = abs(own or 0.0)
            lost = _apart(own, other.own_metric, one.evaluated_samples, objective, flipped, largest, MIDDLE)
            return f"{lost} after its first {other.steps} steps where it was {own:.4g}" if lost else ""
    return ""


def _other_updates(before: ProbeResult, after: ProbeResult) -> str:
    missing = set(before.arrays.names) - set(after.arrays.names)
    if missing and set(after.arrays.names) < set(before.arrays.names):
        return f"{sorted(missing)[0]} is not trained"
    if not before.arrays.alike(after.arrays):
        return ""
    allowed = (*before.probe.skipped_by_scaler, *after.probe.skipped_by_scaler)
    still = standing_still(before.arrays.weights, after.arrays.weights, before.arrays, allowed)
    if still:
        return f"{still[1]} is not updated in step {still[0]}"
    for window, weights in before.arrays.windows.items():
        others = after.arrays.windows.get(window)
        same = before.probe.trained == after.probe.trained and (window == "end" or window in before.same_windows(after))
        still = standing_still(weights, others, before.arrays) if others is not None and same and not allowed else None
        if still:
            step = f"in step {before.probe.until - len(weights) + 1 + still[0]}"
            return f"{still[1]} is not updated {step if window == 'end' else 'at the end of an epoch'}"
    update = update_difference(before.arrays, after.arrays)
    if update is not None and update > GROSS_UPDATE:
        return f"another update from the same gradients: {update:.2g} of its size off"
    return ""


def metrics_of_both(one: Probe, other: Probe) -> list[tuple[float, float]]:
    """The metrics that both report of the same weights on the same samples."""
    sides = zip(one.metrics, other.metrics, strict=False) if one.evaluation_digest == other.evaluation_digest else ()
    return [(left, right) for left, right in sides if left is not None and right is not None]


def same_metric(one: Probe, other: Probe) -> bool | None:
    """Whether the metrics of both at the same weights and samples are equal but for rounding; None without both."""
    both = metrics_of_both(one, other)
    return all(isclose(left, right, rel_tol=METRIC_ROUNDING) for left, right in both) if both else None


def other_evaluation(one: Probe, other: Probe, objective: Objective, flipped: int) -> str:
    """The metric at the same weights, and of how many samples; rounding may turn so many (``flipped``)."""
    fewer, usual = other.evaluated_samples, one.evaluated_samples
    if fewer is not None and usual is not None and fewer < usual:
        return f"evaluated on {fewer} samples where it was {usual}"
    if one.evaluation_digest != other.evaluation_digest:
        return ""
    largest = max((abs(value) for value in one.metrics if value is not None), default=0.0)
    for place, (left, right) in enumerate(zip(one.metrics, other.metrics, strict=False)):
        last = place == len(one.metrics) - 1
        lost = _apart(left, right, usual, objective, flipped, largest, 1.0 if last else MIDDLE)
        if lost:
            return f"{lost} on the same weights where it was {left:.4g}"
    return ""


def _apart(
    left: float | None,
    right: float | None,
    samples: int | None,
    objective: Objective,
    flipped: int,
    largest: float,
    times: float,
) -> str:
    if left is None or right is None:
        return ""
    size, allowed = max(abs(left), abs(objective.target or 0.0)), objective.tolerance
    if flipped:
        size, allowed = max(size, largest), allowed * times
    margin = max(allowed * size, 1e-9)
    whole = 100.0 if objective.mode == "max" and left > 1.0 else 1.0
    if samples and 0.0 <= left <= whole:
        # a value may be a share of so many samples, as an accuracy is, as exact as the digits that were printed
        counted, printed = left / whole * samples, 0.5 * 10.0 ** int(Decimal(repr(left)).as_tuple().exponent)
        if abs(counted - round(counted)) < 1e-3 + printed / whole * samples:
            margin = max(margin, (flipped + 0.5) * whole / samples)
    return f"{objective.metric or 'the metric'} {right:.4g}" if abs(right - left) > margin else ""
