"""Findings that a plan trains on other data, by another schedule, with other updates, or is evaluated otherwise.

Each is a sentence; an empty one where nothing was found. They need two probes, and no statistics of gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isinf, sqrt

from autoopt.records import Objective
from autoopt.records.messages import EpochOrder, Probe
from autoopt.search.accept.fidelity import (
    MOVED,
    Arrays,
    buffers_apart,
    draws_ratio,
    standing_still,
    update_difference,
    weight_difference,
)
from autoopt.strategy import Risk

GROSS_UPDATE = 0.02
"""From here on another update is made of the same gradients: a finding, not a doubt."""

_FEWER = 0.02
_CHANCE = 4.0
"""Standard errors between two counts of samples drawn at random: more than chance gives once in ten thousand."""

_DRAWS = 0.2
"""Deviation of the spread of gradients under other draws from which on it is another dropout, beyond its error."""

_FEW_DRAWS = (0.4, 2.5)
"""The ratio of these spreads that the draws of one batch leave open."""

FLIPPED = 3
"""Samples of an evaluation that rounding may turn at a middle of the training: where there are 180, two of them were
more than a tolerance of half a per cent."""

MIDDLE = 2.0
"""Tolerances by which rounding may move a metric at weights before the last. Its size is that of the largest: few of an
untrained model's answers are right, and hardly any of them are sure. What counts is the end, where trainings are
compared. Of 16,384 letters two more were right in bf16 (0.01593, not 0.01581): a plan of 1.39x was taken out."""


@dataclass(frozen=True)
class ProbeResult:
    """A probe with its arrays."""

    probe: Probe
    arrays: Arrays

    def same_windows(self, other: ProbeResult) -> tuple[str, ...]:
        """Windows that both began at the same weights, with the same batches: the later one if both trained as far."""
        return ("start", "epoch") if self.probe.trained == other.probe.trained else ("start",)


def another_training(
    risk: Risk, before: ProbeResult, after: ProbeResult, objective: Objective, deterministic: bool | None
) -> str:
    """A sentence where the candidate certainly trains on other data, with other updates, or is evaluated otherwise."""
    one, other = before.probe, after.probe
    return (
        other_data(one, other, deterministic)
        or _other_order(one.order, other.order)
        or _other_rate(one, other)
        or _other_updates(before, after)
        or _other_dropout(before, after)
        or _other_buffers(before, after)
        or other_evaluation(one, other, objective, FLIPPED if risk is Risk.NUMERIC else 0)
        or _other_own_evaluation(before, after, objective, FLIPPED if risk is Risk.NUMERIC else 0)
    )


def other_data(one: Probe, other: Probe, deterministic: bool | None) -> str:
    """Batches by their digests; where draws differ, labels and order, and how many samples repeat earlier ones."""
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


def _other_order(one: EpochOrder | None, other: EpochOrder | None) -> str:
    """What the sampler says of whole epochs, which no probe has the time to read."""
    if one is None or other is None or one.length != other.length:
        return ""  # samples were joined or cut (packing): their batches are compared
    if other.samples < one.samples:
        return f"{other.samples} samples an epoch where it was {one.samples}: the rest is dropped (drop_last)"
    if other.distinct < one.distinct:
        return f"{other.distinct} different samples an epoch of the {one.distinct} that it was: a subset of the data"
    if other.repeats and not one.repeats:
        return "the second epoch has the order of the first: the sampler is not told its epoch (set_epoch)"
    return ""


def _other_rate(one: Probe, other: Probe) -> str:
    rates, others = ({**dict(p.rates_ahead), **dict(enumerate(p.learning_rates))} for p in (one, other))
    for place in sorted(rates.keys() & others.keys(), key=lambda place: (place < 0, abs(place))):
        left, right = rates[place], others[place]
        if abs(left - right) > 1e-6 * max(abs(left), abs(right)):
            where = f"step {place}" if place >= 0 else f"epoch {-place}"
            return f"learning rate {right:.3g} at {where} where it was {left:.3g}"
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
        still = None
        if others is not None and not allowed and before.probe.trained == after.probe.trained:
            still = standing_still(weights, others, before.arrays)
        if still and window == "end":
            return f"{still[1]} is not updated in step {before.probe.until - len(weights) + 1 + still[0]}"
        if still:
            return f"{still[1]} is not updated at the end of an epoch"
    update = update_difference(before.arrays, after.arrays)
    if update is not None and update > GROSS_UPDATE:
        return f"another update from the same gradients: {update:.2g} of its size off"
    return ""


def _other_dropout(before: ProbeResult, after: ProbeResult) -> str:
    one, other = before.probe.dropouts, after.probe.dropouts
    if len(one) == len(other) and one != other:
        left, right = next(pair for pair in zip(one, other, strict=True) if pair[0] != pair[1])
        return f"a dropout of {right:g} where it was {left:g}"
    found = draws_ratio(before.arrays, after.arrays)
    if found is None:
        return ""
    ratio, error = found
    few = isinf(error)
    low, high = _FEW_DRAWS if few else (1 - _DRAWS - error, 1 + _DRAWS + error)
    return "" if low <= ratio <= high else f"gradients scatter {ratio:.2g} times as much under other draws (dropout)"


def _other_buffers(before: ProbeResult, after: ProbeResult) -> str:
    windows = (*before.same_windows(after), *(["end"] if before.probe.trained == after.probe.trained else []))
    found = buffers_apart(before.arrays, after.arrays, windows)
    return f"{found[1]} stays as it is: statistics that no longer move" if found and isinf(found[0]) else ""


def other_evaluation(one: Probe, other: Probe, objective: Objective, flipped: int) -> str:
    """The metric at the same weights, and how many samples it is of.

    Args:
        flipped: samples that rounding may put to the other side, where the metric is a share of them.
    """
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


def _other_own_evaluation(before: ProbeResult, after: ProbeResult, objective: Objective, flipped: int) -> str:
    """The metric of each plan's own weights after its recorded steps, by its own code, where these are the same."""
    one, other = before.probe, after.probe
    if one.steps != other.steps or not before.arrays.alike(after.arrays):
        return ""
    apart = weight_difference(before.arrays, after.arrays)
    if not len(apart) or float(apart.max()) > MOVED:
        return ""
    left, right = one.own_metric, other.own_metric
    lost = _apart(left, right, one.evaluated_samples, objective, flipped, abs(left or 0.0), MIDDLE)
    return f"{lost} after its first {other.steps} steps where it was {left:.4g}" if lost else ""


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
    if samples and _is_share(left, samples):
        margin = max(margin, (flipped + 0.5) / samples)
    return f"{objective.metric or 'the metric'} {right:.4g}" if abs(right - left) > margin else ""


def _is_share(value: float, samples: int) -> bool:
    """Whether a metric can be a share of so many samples: an accuracy, and no loss."""
    return 0.0 <= value <= 1.0 and abs(value * samples - round(value * samples)) < 1e-3
