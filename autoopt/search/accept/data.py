"""The data of two probes: the same batches, other ones, or other ones because weights are.

Some trainings draw their data by their own weights: reinforcement learning, hard examples, a solver that calls the
model on what it computed before. There the rounding of an update leads to other batches. Whether a training is of this
kind is measured: the incumbent's probe is repeated from weights elsewhere. The parts of a step's data that are the same
in both do not depend on weights, and must be the same under a candidate. The other parts must be so as long as weights
and arithmetic are. Where they differ later, nothing on them is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from autoopt.records.messages import EpochOrder, Probe
from autoopt.search.accept.fidelity import Arrays
from autoopt.search.accept.losses import CHANCE

_DIGEST = 16
"""Letters of the digest of one part of a step's data (``autoopt.benchmark.fingerprint``)."""

_FEWER = 0.02
"""Share of an epoch's samples by which two counts may differ at least."""


@dataclass(frozen=True)
class ProbeResult:
    """A probe with its arrays.

    ``elsewhere``: makes the same probe again from weights elsewhere; its answer is None where that fails. ``rounded``:
    its arrays from weights that begin so far apart, a rounding, by which a training parts from itself; under other
    draws of dropout where that is said.
    """

    probe: Probe
    arrays: Arrays
    elsewhere: Callable[[], Probe | None] = lambda: None
    rounded: Callable[[float, bool], Arrays | None] = lambda size, other_draws: None

    def same_windows(self, other: ProbeResult) -> tuple[str, ...]:
        """Windows that both began at the same weights, with the same batches: the later one if both trained as far."""
        one, two = self.probe, other.probe
        return ("start", "epoch") if (one.trained, one.crossed) == (two.trained, two.crossed) else ("start",)

    def cut(self, steps: int) -> ProbeResult:
        """What it shows of its first steps; those of its gradients come first, where they are steps of their own."""
        arrays, points = self.arrays, len(self.arrays.gradients)
        taken = len(self.probe.gradient_digests)
        rows = [len(range(point, min(steps, taken), points)) if taken else None for point in range(points)]
        left = max(min(steps - taken, self.probe.steps), 0)
        shown = {"losses": self.probe.losses[:left], "gradient_digests": self.probe.gradient_digests[:steps]}
        gradients = tuple(values[:count] for values, count in zip(arrays.gradients, rows, strict=True))
        buffers = {name: values[: left + 1] for name, values in arrays.buffers.items() if name == "start"}
        weights, probe = arrays.weights[: left + 1], {"steps": left, "trained": 0, "crossed": 0, **shown}
        arrays = replace(arrays, gradients=gradients, weights=weights, windows={}, buffers=buffers)
        return replace(self, probe=self.probe.model_copy(update=probe), arrays=arrays)


@dataclass(frozen=True)
class DataCompared:
    """The data of two probes next to each other.

    ``lost``: a sentence where the candidate certainly reads other data. ``until``: the step from which on nothing can
    be compared, for the data depend on weights that differ; None: none. ``alike``: some steps before it have parts that
    differ as weights do.
    """

    lost: str = ""
    until: int | None = None
    alike: bool = False

    @property
    def note(self) -> str:
        """What is said where data depend on weights."""
        if self.until is None:
            return ""
        return f"; its data depend on its weights, so that later batches than those of step {self.until} say nothing"

    @staticmethod
    def of(before: ProbeResult, after: ProbeResult, deterministic: bool | None) -> DataCompared:
        """Of incumbent and candidate; the incumbent's is repeated where their batches differ. Where the dataset does
        not give the same sample twice (``deterministic``), labels and order are compared."""
        one, other, key = before.probe, after.probe, "orders" if deterministic is False else "digests"
        steps = _steps(getattr(one, key), getattr(other, key))
        rolled = deterministic is not False and all(step.whole for step in steps)
        parted = any(step.other for step in steps) or (rolled and _rolled_apart(one, other, None))
        again = before.elsewhere() if parted else None
        if again is not None:
            steps = _steps(getattr(one, key), getattr(other, key), getattr(again, key))
        found = next((number for number, step in enumerate(steps) if step.other), None)
        until = next((number for number, step in enumerate(steps) if step.parted), None)
        taken = min(len(each.probe.gradient_digests) for each in (before, after))
        if found is None and until is not None and 0 < until < taken:
            # one of those steps whose weights are the same: were gradients equal, bit for bit, so far?
            mine, theirs = (each.cut(until).arrays.gradients for each in (before, after))
            pairs = list(zip(mine, theirs, strict=False))
            same = bool(pairs) and all(np.array_equal(left, right, equal_nan=True) for left, right in pairs)
            found = until if same else None
        lost = ""
        if found is not None:
            where = f"step {found}" if found < one.steps else "a batch after the probe's training"
            lost = f"another batch than the incumbent's at {where}"
        elif rolled and _rolled_apart(one, other, again):
            lost = "another batch than the incumbent's at a batch after the probe's training"
        return DataCompared(lost or _other_samples(one, other), until, any(step.alike for step in steps[:until]))


@dataclass(frozen=True)
class _Step:
    """A step's data next to the incumbent's.

    ``other``: parts that do not depend on weights differ. ``alike``: they are the same, and others differ.
    ``parted``: others differ, and there are none. ``whole``: both have as many parts.
    """

    other: bool = False
    alike: bool = False
    parted: bool = False
    whole: bool = True


def _steps(one: Sequence[str], other: Sequence[str], again: Sequence[str] | None = None) -> list[_Step]:
    """Each step of two probes; a part that was not the same ``again``, from weights elsewhere, depends on them."""
    found: list[_Step] = []
    bound: set[int] = set()
    for step, (left, right) in enumerate(zip(one, other, strict=False)):
        mine, whole = list(_parts(left)), len(left) == len(right)
        if again is not None and step < len(again):
            repeated = list(_parts(again[step]))
            most = max(len(mine), len(repeated))
            bound |= {n for n in range(most) if mine[n : n + 1] != repeated[n : n + 1]}
        free = [n for n in range(len(mine)) if n not in bound]
        if left == right or (not whole and again is None):  # micro-batches of other lengths, which cannot be joined
            found.append(_Step(whole=whole))
            continue
        theirs = list(_parts(right))
        differ = whole and any(mine[n] != theirs[n] for n in free)
        found.append(_Step(other=differ, alike=bool(free) and not differ, parted=not free, whole=whole))
    return found


def _parts(digest: str) -> Iterator[str]:
    return (digest[begin : begin + _DIGEST] for begin in range(0, len(digest), _DIGEST))


def _rolled_apart(one: Probe, other: Probe, again: Probe | None) -> bool:
    """Whether the batches that were only read differ, but for those that depend on weights."""
    known = list(zip(one.rolled, other.rolled, strict=False))
    same = [again is None or again.rolled[n : n + 1] == (left,) for n, (left, _) in enumerate(known)]
    return any(free and left != right for free, (left, right) in zip(same, known, strict=True))


def _other_samples(one: Probe, other: Probe) -> str:
    """How many samples of an epoch are different ones, and how many repeat earlier ones."""
    for number, (left_epoch, right_epoch) in enumerate(zip(one.epochs, other.epochs, strict=False)):
        samples = min(left_epoch.samples, right_epoch.samples)
        if not samples or left_epoch.samples != right_epoch.samples:
            continue
        if left_epoch.distinct - right_epoch.distinct > _by_chance(left_epoch.distinct, right_epoch.distinct, samples):
            distinct = f"{right_epoch.distinct} different samples of {samples} in epoch {number}"
            return f"{distinct}, {left_epoch.distinct} before"
        left_seen, right_seen = left_epoch.seen_before, right_epoch.seen_before
        if right_seen - left_seen > _by_chance(left_seen, right_seen, samples):
            return f"{right_seen} of {samples} samples of epoch {number} repeat an earlier one: frozen draws"
    return ""


def _by_chance(one: int, other: int, samples: int) -> float:
    """The largest difference of two counts that honest draws give: where a flip is all that is drawn, half repeat."""
    variance = sum(count * (samples - count) / samples for count in (one, other))
    return max(_FEWER * samples, CHANCE * sqrt(variance))


def other_order(one: EpochOrder | None, other: EpochOrder | None) -> str:
    """What the sampler says of whole epochs, which no probe has the time to read."""
    if one is None or other is None or one.length != other.length:
        return ""  # samples were joined or cut (packing): their batches are compared
    if other.samples < one.samples:
        return f"{other.samples} samples an epoch where it was {one.samples}: the rest is dropped (drop_last)"
    if other.distinct < one.distinct:
        return f"{other.distinct} different samples an epoch of the {one.distinct} that it was: a subset of the data"
    if other.repeats and not one.repeats:
        return "the second epoch has the order of the first: nothing calls the sampler's set_epoch"
    return ""
