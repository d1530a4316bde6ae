"""The quality level of a plan from two probes, within seconds and without training."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from autoopt.records import Objective, Quality
from autoopt.records.messages import Probe
from autoopt.search.accept.fidelity import (
    MOVED,
    UPDATE,
    Arrays,
    GradientFidelity,
    draws_ratio,
    gradient_fidelity,
    standing_still,
    update_difference,
    weight_difference,
)
from autoopt.search.accept.loss_paths import common, same_on_average, same_to_rounding
from autoopt.search.compare.comparison import LossPath
from autoopt.strategy import Risk

_GROSS_UPDATE = 0.02
_FEWER = 0.02
_CHANCE = 4.0
"""Standard errors between two counts of samples drawn at random: more than chance gives once in ten thousand."""

_DRAWS = (0.4, 2.5)
"""Spread of gradients under other draws, over the incumbent's, that three batches leave open."""

FLIPPED = 3
"""Samples of an evaluation that rounding may turn at a middle of the training: where there are 180, two of them were
more than a tolerance of half a per cent."""

MIDDLE = 2.0
"""Tolerances by which rounding may move a metric at weights before the last. Its size is that of the largest: few of an
untrained model's answers are right, and hardly any of them are sure. What counts is the end, where trainings are
compared. Of 16,384 letters two more were right in bf16 (0.01593, not 0.01581): a plan of 1.39x was taken out."""

_ROUNDING_ERROR = 1e-3
"""Error of a gradient, over its spread between batches, that rounding alone explains in float32."""


@dataclass(frozen=True)
class ProbeResult:
    """A probe with its arrays."""

    probe: Probe
    arrays: Arrays


def level_of(
    risk: Risk,
    before: ProbeResult,
    after: ProbeResult,
    objective: Objective,
    *,
    deterministic: bool | None = True,
    epsilon: float = 2.0**-23,
) -> Quality:
    """The quality level that two probes show of the candidate's training beside the incumbent's.

    Args:
        risk: ``exact`` or ``numeric``; others train otherwise by intention and are not told by a probe.
        deterministic: the dataset gives the same sample twice.
        epsilon: rounding of the arithmetic of both.

    Returns:
        ``passed`` True with its level; False where it is certainly another training; None, level ``undecided``, else.
    """
    lost = _another_training(risk, before, after, objective, deterministic)
    if lost:
        return Quality(method="probe", passed=False, steps=after.probe.steps, detail=lost)
    points = _points(before, after)
    for number, point in enumerate(points):
        if point.another:
            where = ("at the start", "in the middle", "at the end")[min(number, 2)]
            return _quality(
                points, after, None, f"another gradient {where} of the training: {point.text}", passed=False
            )
    same_gradients = bool(points) and all(point.same for point in points)
    update = update_difference(before.arrays, after.arrays)
    same_update = update is not None and update <= UPDATE
    seen = bool(points) or risk is Risk.EXACT  # what may round is not judged by losses and weights of a few steps alone
    identical = _identical(before, after, points, deterministic, epsilon) if seen else ""
    if identical and (update is None or same_update):
        return _quality(points, after, "identical", identical, passed=True)
    if not same_gradients or not same_update:
        why = _doubt(points, update)
        return _quality(points, after, "undecided", why + _unseen(before.probe, after.probe), passed=None)
    worst = max(points, key=lambda point: point.error)
    detail = (
        f"the same training but for rounding: {worst.text} at worst of {_told(len(points), before.probe)} of "
        f"{len(after.arrays.gradients[0])} batches, equal updates{_unseen(before.probe, after.probe)}"
    )
    return _quality(points, after, "equivalent", detail, passed=True)


def _unseen(one: Probe, other: Probe) -> str:
    """What is said where a part of the batches tells nothing that can be compared."""
    part = one.unseen or other.unseen
    return f"; the samples' order could not be checked ({part} not seen)" if part else ""


def _told(points: int, before: Probe) -> str:
    """The sets of weights at which gradients were compared, in words."""
    told = f"{points} points" if points > 1 else "one point"
    return f"{told} in its first {before.own_steps} steps" if before.own_steps else told


def _quality(
    points: list[GradientFidelity], after: ProbeResult, level: str | None, detail: str, *, passed: bool | None
) -> Quality:
    finite = [point for point in points if np.isfinite(point.error)]
    return Quality.model_validate(
        {
            "method": "probe",
            "level": level,
            "passed": passed,
            "steps": after.probe.steps,
            "gradient_error": max((point.error for point in finite), default=None),
            "gradient_bias": max((point.bias for point in finite), default=None),
            "detail": detail,
        }
    )


def _another_training(
    risk: Risk, before: ProbeResult, after: ProbeResult, objective: Objective, deterministic: bool | None
) -> str:
    """A sentence where the candidate certainly trains on other data, with other updates, or is evaluated otherwise."""
    one, other = before.probe, after.probe
    return (
        _other_data(one, other, deterministic)
        or _other_rate(one, other)
        or _other_updates(before, after)
        or _other_evaluation(one, other, objective, FLIPPED if risk is Risk.NUMERIC else 0)
    )


def _other_data(one: Probe, other: Probe, deterministic: bool | None) -> str:
    key = "orders" if deterministic is False else "digests"
    comparable = deterministic is not False
    for step, (left, right) in enumerate(zip(getattr(one, key), getattr(other, key), strict=False)):
        if len(left) != len(right):  # micro-batches of other lengths, which cannot be joined
            comparable = False
        elif left != right:
            where = f"step {step}" if step < one.steps else "a batch after the probe's training"
            return f"another batch than the incumbent's at {where}"
    if comparable and any(left != right for left, right in zip(one.rolled, other.rolled, strict=False)):
        return "another batch than the incumbent's at a batch after the probe's training"
    for number, (left_epoch, right_epoch) in enumerate(zip(one.epochs, other.epochs, strict=False)):
        samples = min(left_epoch.samples, right_epoch.samples)
        if not samples or left_epoch.samples != right_epoch.samples:
            continue
        if left_epoch.distinct - right_epoch.distinct > _by_chance(left_epoch.distinct, right_epoch.distinct, samples):
            return (
                f"{right_epoch.distinct} different samples of {samples} in epoch {number}, {left_epoch.distinct} before"
            )
        left_seen, right_seen = left_epoch.seen_before, right_epoch.seen_before
        if right_seen - left_seen > _by_chance(left_seen, right_seen, samples):
            return f"{right_seen} of {samples} samples of epoch {number} repeat an earlier one: frozen draws"
    return ""


def _by_chance(one: int, other: int, samples: int) -> float:
    """The largest difference of two counts that honest draws give: where a flip is all that is drawn, half repeat."""
    variance = sum(count * (samples - count) / samples for count in (one, other))
    return max(_FEWER * samples, _CHANCE * sqrt(variance))


def _other_rate(one: Probe, other: Probe) -> str:
    for step, (left, right) in enumerate(zip(one.learning_rates, other.learning_rates, strict=False)):
        if abs(left - right) > 1e-6 * max(abs(left), abs(right)):
            return f"learning rate {right:.3g} at step {step} where it was {left:.3g}"
    return ""


def _other_updates(before: ProbeResult, after: ProbeResult) -> str:
    missing = set(before.arrays.names) - set(after.arrays.names)
    if missing and set(after.arrays.names) < set(before.arrays.names):
        return f"{sorted(missing)[0]} is not trained"
    if not before.arrays.alike(after.arrays):
        return ""
    allowed = (*before.probe.skipped_by_scaler, *after.probe.skipped_by_scaler)
    still = standing_still(before.arrays, after.arrays, allowed)
    if still:
        return f"{still[1]} is not updated in step {still[0]}"
    update = update_difference(before.arrays, after.arrays)
    if update is not None and update > _GROSS_UPDATE:
        return f"another update from the same gradients: {update:.2g} of its size off"
    ratio = draws_ratio(before.arrays, after.arrays)
    if ratio is not None and not _DRAWS[0] <= ratio <= _DRAWS[1]:
        return f"gradients scatter {ratio:.2g} times as much under other draws (dropout)"
    return ""


def _other_evaluation(one: Probe, other: Probe, objective: Objective, flipped: int) -> str:
    """Args: flipped: samples that rounding may put to the other side, where the metric is a share of them."""
    fewer, usual = other.evaluated_samples, one.evaluated_samples
    if fewer is not None and usual is not None and fewer < usual:
        return f"evaluated on {fewer} samples where it was {usual}"
    if one.evaluation_digest != other.evaluation_digest:
        return ""
    largest = max((abs(value) for value in one.metrics if value is not None), default=0.0)
    for place, (left, right) in enumerate(zip(one.metrics, other.metrics, strict=False)):
        if left is None or right is None:
            continue
        size, allowed = max(abs(left), abs(objective.target or 0.0)), objective.tolerance
        if flipped:
            size, allowed = max(size, largest), allowed * (1.0 if place == len(one.metrics) - 1 else MIDDLE)
        margin = max(allowed * size, 1e-9)
        if usual and _is_share(left, usual):
            margin = max(margin, (flipped + 0.5) / usual)
        if abs(right - left) > margin:
            return f"{objective.metric or 'the metric'} {right:.4g} on the same weights where it was {left:.4g}"
    return ""


def _is_share(value: float, samples: int) -> bool:
    """Whether a metric can be a share of so many samples: an accuracy, and no loss."""
    return 0.0 <= value <= 1.0 and abs(value * samples - round(value * samples)) < 1e-3


def _points(before: ProbeResult, after: ProbeResult) -> list[GradientFidelity]:
    """Fidelity at each set of weights; empty where the parameters or the batches are not the same ones."""
    one, other = before.arrays, after.arrays
    if not one.alike(other) or not _same_batches(before.probe, after.probe):
        return []
    pairs = zip(one.gradients, other.gradients, strict=False)
    return [gradient_fidelity(one, left, right) for left, right in pairs if min(len(left), len(right)) >= 2]


def _same_batches(one: Probe, other: Probe) -> bool:
    """Whether both took gradients on the same batches; where they are handed on there are no digests, and it holds."""
    return one.gradient_digests == other.gradient_digests


def _identical(
    before: ProbeResult, after: ProbeResult, points: list[GradientFidelity], deterministic: bool | None, epsilon: float
) -> str:
    """A sentence where losses and weights agree to rounding over the whole probe; else empty."""
    if not before.arrays.alike(after.arrays) or before.probe.unseen or after.probe.unseen:
        return ""
    paths = common(_path(before.probe), _path(after.probe))
    if paths is None:
        return ""
    steps, rounded = len(paths.steps), max(_ROUNDING_ERROR, 64 * epsilon)
    if deterministic is False:
        exact = points and all(point.same and point.error <= rounded for point in points)
        if not exact or not all(before.probe.orders) or not same_on_average(paths).passed:
            return ""
        return f"same labels in the same order over {steps} steps, identical but for the draws of augmentation"
    if not same_to_rounding(paths, epsilon).passed or any(point.error > rounded for point in points):
        return ""  # losses of a short probe hide what half precision does to each gradient
    apart = weight_difference(before.arrays, after.arrays)
    if not len(apart) or float(apart.max()) > MOVED:
        return ""
    return f"same batches, losses and weights over {steps} steps (weights {float(apart.max()):.1g} of a step apart)"


def _path(probe: Probe) -> LossPath:
    return LossPath(steps=tuple(range(len(probe.losses))), losses=probe.losses)


def _doubt(points: list[GradientFidelity], update: float | None) -> str:
    if not points:
        return "gradients could not be compared: no kept weights fit this model, a scaler, or other batches"
    odd = next((point for point in points if not point.same), None)
    if odd is not None:
        return f"gradients differ by more than rounding would: {odd.text}, {odd.worst:.2g} in {odd.worst_name}"
    if update is None:
        return "the optimizer's update could not be compared"
    return f"updates from the same gradients differ by {update:.2g} of their size"
