"""Training losses of two plans from one seed: the same training, or not?

``same_to_rounding`` is for changes that claim to change nothing, ``same_within_tolerance`` for those that may round
otherwise, ``same_on_average`` for workloads whose own augmentation is random, so that single losses cannot be compared
at all. A path that is lower is suspect too: a loss that leaves out its hardest samples falls faster than an honest one.

``judge_whole_runs`` holds whole trainings against each other. Those that round or draw otherwise part by chance: what
one learns at step 500 the other learns at 600, and two networks that are trained against each other (a GAN) part for
good. How far chance alone takes them is what the baseline's own trainings show, which begin from other seeds or, of a
script that sets its own, from weights that differ by a rounding (``autoopt.benchmark.seeding``). Rates of the rule:
``docs/explanation/quality.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autoopt.records import Quality
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import FEWEST_SEEDS, Evidence, Pairs
from autoopt.search.compare.comparison import LossPath

Array = NDArray[np.float64]

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11, None: 2.0**-23}
"""Relative error of one operation, by torch's name for the precision; None: float32."""

FIRST_STEPS = 8
"""Steps in which rounding has not yet grown; fewer common ones are no evidence."""

PATH_TOLERANCE = 0.02
"""How far a smoothed loss may lie off, as a share of the loss at the start."""

CHANCE = 4.0
"""Standard errors that chance explains: of a window's mean, and between counts of samples drawn at random."""

GROSS = 0.2
"""Share of the loss by which losses of one seed must differ to decide by themselves."""

SEEN_BY_PROBES = 64
"""Steps of a probe, in which rounding has not grown yet: no spread excuses a difference in them."""

_ROUNDING_GROWTH = 0.3
_WINDOWS = 8
_SKIPPED = 16
"""A gradient scaler may leave out fewer steps in a row than this, in which nothing moves."""

_BY_SPREAD = {2: 4.0}
_BY_SPREAD_OF_MORE = 2.0
"""How many times the baseline's own spread losses may lie off in all seeds, by the number of these: of trainings that
differ by chance alone one in a hundred lies further off."""


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
    def farthest(self) -> float:
        """The largest difference of window means beyond chance, as a share of the loss there, or at the start."""
        both = zip(windows(self.difference), windows(np.abs(self.before)), strict=True)
        return max(
            abs(float(window.mean())) / max(self.scale, float(level.mean()))
            if abs(window.mean()) > CHANCE * error_of_mean(window)
            else 0.0
            for window, level in both
        )


def common(before: LossPath, after: LossPath) -> Common | None:
    """The steps that both captured with finite losses; None where too few to tell anything."""
    left = {s: loss for s, loss in zip(before.steps, before.losses, strict=True) if loss is not None}
    right = {s: loss for s, loss in zip(after.steps, after.losses, strict=True) if loss is not None}
    steps = sorted(left.keys() & right.keys())
    if len(steps) < FIRST_STEPS:
        return None
    paths = (steps, [left[step] for step in steps], [right[step] for step in steps])
    return Common(*(np.array(each, dtype=np.float64) for each in paths))


def same_to_rounding(paths: Common, epsilon: float, own: Common | None = None) -> Quality:
    """Same order of samples and same arithmetic: equal to rounding at first, and close to it later.

    Rounding grows in training, so later losses may differ by a third of what one batch differs from the next (median);
    another order of samples differs by 1.4 times that, from the first step on. ``own``: the incumbent against itself,
    which widens both bounds where it does not repeat itself either.
    """
    repeats = float(np.abs(own.difference).max()) if own else 0.0
    batch_noise = float(np.median(np.abs(np.diff(paths.before)))) / 0.9539 if len(paths.before) > 1 else 0.0
    early = max(1e-4 * paths.scale, 64 * epsilon * paths.scale, 4 * repeats)
    late = max(early, _ROUNDING_GROWTH * batch_noise)
    difference = np.abs(paths.difference)
    first = paths.steps < paths.steps[0] + FIRST_STEPS
    wrong = difference > np.where(first, early, late)
    passed = not wrong[first].any() and float(np.median(difference)) <= late and same_on_average(paths).passed is True
    if passed:
        detail = f"same losses to rounding over {len(difference)} steps"
    else:
        at = int(paths.steps[int(np.argmax(wrong))]) if wrong.any() else int(paths.steps[-1])
        detail = f"losses differ from step {at} on, by up to {difference.max():.3g} where rounding explains {early:.1g}"
    return _compared("losses", paths, early, detail, passed=passed)


def same_within_tolerance(paths: Common, own: Common | None = None) -> Quality:
    """Same training but for rounding: the smoothed path stays within the tolerance, from the first step on, or parts no
    further than the incumbent does from itself where its weights differ by a rounding (``own``)."""
    first, margin = float(np.abs(paths.difference[:2]).max()), PATH_TOLERANCE * paths.scale
    if first > max(margin, PATH_TOLERANCE * float(np.abs(paths.before[:2]).max())):
        detail = f"on the same weights and the same batch the loss differs by {first:.3g}: another loss is computed"
        return _compared("loss_path", paths, margin, detail, passed=False)
    return same_on_average(paths, own)


def same_on_average(paths: Common, own: Common | None = None) -> Quality:
    """Windows of the two paths agree within the tolerance, or what chance explains (``own`` is chance alone)."""
    difference = paths.difference
    cut = windows(difference)
    means, errors = (np.array([of(window) for window in cut]) for of in (np.mean, error_of_mean))
    if own is not None:
        lengths = np.array([len(window) for window in cut])
        parts = np.array_split(own.difference, max(1, len(difference) // lengths[-1]))
        chance = float(np.sqrt(np.mean([part.mean() ** 2 for part in parts if len(part)])))
        errors = np.maximum(errors, chance * np.sqrt(np.maximum(lengths[-1] / lengths, 1.0)))
    margin = PATH_TOLERANCE * paths.scale
    excess = np.abs(means) - margin - CHANCE * errors
    worst = int(np.argmax(excess))
    where = int(paths.steps[sum(len(window) for window in cut[:worst])])
    detail = f"loss path within {PATH_TOLERANCE:.0%} of the loss at the start over {len(difference)} steps"
    if excess[worst] > 0:
        detail = (
            f"loss {abs(means[worst]):.3g} {'higher' if means[worst] > 0 else 'lower'} than before from step {where} "
            f"on (tolerance {margin:.2g}, chance {CHANCE * errors[worst]:.2g})"
        )
    return _compared("loss_path", paths, margin, detail, passed=bool(excess[worst] <= 0))


def _compared(method: str, paths: Common, margin: float, detail: str, *, passed: bool) -> Quality:
    known = {"method": method, "passed": passed, "steps": len(paths.steps), "margin": margin, "detail": detail}
    return Quality.model_validate({**known, "largest_loss_difference": float(np.abs(paths.difference).max())})


def windows(difference: Array) -> list[Array]:
    """Windows of equal length, and at the start of a long path shorter ones, each twice as long as the one before. A
    loss falls most in the first steps: there another training shows itself, whatever number of steps was captured."""
    usual = len(difference) // max(1, min(_WINDOWS, len(difference) // FIRST_STEPS))
    ends: list[int] = []
    length = FIRST_STEPS
    while length < usual:
        ends.append(sum(ends[-1:]) + length)
        length *= 2
    start, rest = np.split(difference, ends)[:-1], difference[sum(ends[-1:]) :]
    return [*start, *np.array_split(rest, max(1, round(len(rest) / max(usual, 1))))]


def error_of_mean(window: Array) -> float:
    """Standard error of a window's mean; neighbours are alike, so from the means of four stretches. A straight line is
    taken off first: a difference that grows steadily is a finding, not chance."""
    if len(window) < 8:
        return float(np.std(window) / np.sqrt(max(len(window), 1)))
    x = np.arange(len(window), dtype=np.float64)
    left = window - np.polyval(np.polyfit(x, window, 1), x)
    means = [stretch.mean() for stretch in np.array_split(left, 4)]
    return float(max(np.std(means, ddof=1) / 2.0, np.std(left) / np.sqrt(len(left))))


def _common(before: TrainingRun, after: TrainingRun) -> Common | None:
    return common(LossPath.of(before.losses), LossPath.of(after.losses))


def apart(evidence: Evidence) -> list[tuple[int, float, Quality]]:
    """Seeds whose losses differ by more than scatter explains, how far (of the loss at the start), and where."""
    known = [(after.seed, _common(before, after)) for before, after in evidence.paired_with_incumbent()]
    judged = [(seed, paths, same_on_average(paths)) for seed, paths in known if paths is not None]
    return [(seed, paths.farthest, whole) for seed, paths, whole in judged if whole.passed is False]


def parted_late(paths: Common) -> bool:
    """Whether two paths of one seed are alike as far as a probe sees, and differ by less than is gross later.

    Rounding takes networks that are trained against each other apart within some hundred steps.
    """
    early = paths.steps < paths.steps[0] + SEEN_BY_PROBES
    start = Common(paths.steps[early], paths.before[early], paths.after[early])
    return same_within_tolerance(start).passed is True and paths.farthest <= GROSS


def judge_whole_runs(quality: Quality, evidence: Evidence) -> Quality:
    """The quality that probes have shown, unless whole trainings show another training.

    Where the losses of one seed alone differ, that is reported, and decides only where no chance explains it: of what
    rounds otherwise, whatever is gross wants a further seed. Of several seeds, what lies off in the same direction in
    all of them, by more than the baseline's own trainings do from each other, is another training.

    Returns:
        It, with what was seen; ``passed`` False for another training; None, level ``undecided``, where a further
            seed has to tell.
    """
    pairs, differing = evidence.paired_with_incumbent(), apart(evidence)
    still = stood_still(pairs)
    if still:
        return Quality(method="loss_path", passed=False, detail=still)
    if not differing:
        return quality
    seed, share, whole = max(differing, key=lambda one: one[1])
    text = f"in training from seed {seed}: {whole.detail}"
    own = _OwnSpread.of(evidence) if len(pairs) >= FEWEST_SEEDS else None
    if own is None:
        if share > GROSS and len(pairs) < FEWEST_SEEDS and quality.level == "equivalent":
            why = f"quality undecided: {text}, where probes saw the same but for rounding: a further seed has to tell"
            return quality.model_copy(update={"level": "undecided", "passed": None, "detail": why})
        if len(differing) == len(pairs) >= FEWEST_SEEDS or share > GROSS:
            return whole.model_copy(update={"detail": text})
        return quality.model_copy(update={"detail": f"{quality.detail}; {text}, which one seed does not decide"})
    by = _BY_SPREAD.get(len(own.means), _BY_SPREAD_OF_MORE)
    if own.alone() > 0 or own.excess(by).max() > 0:
        return Quality(method="loss_path", passed=False, margin=whole.margin, detail=own.words(by))
    if own.excess(_BY_SPREAD_OF_MORE).max() > 0:
        detail = f"quality undecided: {own.words(_BY_SPREAD_OF_MORE)}: a further seed has to tell"
        return quality.model_copy(update={"level": "undecided", "passed": None, "detail": detail})
    spread = f"trainings of the baseline lie up to {float(own.spread.max()):.2g} from each other"
    return quality.model_copy(update={"detail": f"{quality.detail}; {text}; {spread}"})


@dataclass(frozen=True)
class _OwnSpread:
    """Losses of candidate and baseline next to each other, by window; ``first`` is the step that each begins with.

    Args:
        means, errors: of the differences, and what scatter within a window explains of them, (seeds, windows).
        spread: how far trainings of the baseline lie from each other, (windows,).
        margin: the tolerance, in units of the loss.
        level: of the baseline's loss at the start, or in the window where that is larger, (windows,).
    """

    first: Array
    means: Array
    errors: Array
    spread: Array
    margin: float
    level: Array

    @staticmethod
    def of(evidence: Evidence) -> _OwnSpread | None:
        """None where a pair has too few losses in common, or the baseline's trainings have."""
        pairs = [_common(old, new) for old, new in evidence.paired_with_incumbent()]
        runs = evidence.incumbent_runs or evidence.baseline_runs
        own = [_common(one, other) for one, other in combinations(runs, 2)]
        known = [paths for paths in (*pairs, *own) if paths is not None]
        if not own or len(known) < len(pairs) + len(own):
            return None
        steps = min(len(paths.difference) for paths in known)
        cut = [windows(paths.difference[:steps]) for paths in known]
        seeds, others = cut[: len(pairs)], np.array([_means(one) for one in cut[len(pairs) :]])
        first = np.concatenate([[0.0], np.cumsum([len(window) for window in cut[0]])[:-1]])
        here = np.mean([_means(windows(np.abs(paths.before[:steps]))) for paths in known[: len(pairs)]], axis=0)
        scale = float(np.mean([paths.scale for paths in known[: len(pairs)]]))
        # trainings that have parted stay so: the largest distance up to a window and the next one, none at the start
        parted = np.sqrt(np.mean(np.square(others), axis=0))
        late = np.where(first >= SEEN_BY_PROBES, np.maximum(parted, np.append(parted[1:], parted[-1:])), 0.0)
        return _OwnSpread(
            first=first,
            means=np.array([_means(one) for one in seeds]),
            errors=np.array([[error_of_mean(window) for window in one] for one in seeds]),
            spread=np.asarray(np.maximum.accumulate(late)),
            margin=PATH_TOLERANCE * scale,
            level=np.maximum(here, scale),
        )

    def excess(self, by: float) -> Array:
        """The difference that all seeds share, less what scatter and so many times the spread explain; by window."""
        same = (np.sign(self.means) == np.sign(self.means[:1])).all(axis=0)
        shared = np.where(same, np.abs(self.means).min(axis=0), 0.0)
        return np.asarray(shared - self.margin - np.maximum(CHANCE * self.errors.max(axis=0), by * self.spread))

    def alone(self) -> float:
        """The largest of the one seed in which it is largest, beyond what is gross."""
        chance = np.maximum(CHANCE * self.errors, _BY_SPREAD[FEWEST_SEEDS] * self.spread)
        return float((np.abs(self.means) - GROSS * self.level - chance).max())

    def words(self, by: float) -> str:
        """A sentence on the window with the largest excess, or of the seed that decides alone."""
        shared = self.excess(by).max() >= self.alone()
        where = int(np.argmax(self.excess(by) if shared else np.abs(self.means).max(axis=0)))
        values = self.means[:, where]
        value = float(values[np.argmin(np.abs(values)) if shared else np.argmax(np.abs(values))])
        return (
            f"loss {abs(value):.3g} {'higher' if value > 0 else 'lower'} than the baseline's from step "
            f"{int(self.first[where])} on in trainings from {f'each of {len(values)} seeds' if shared else 'one seed'} "
            f"(tolerance {self.margin:.2g}; trainings of the baseline lie {self.spread[where]:.2g} from each other)"
        )


def _means(cut: list[Array]) -> Array:
    return np.array([window.mean() for window in cut])


def stood_still(pairs: Pairs) -> str:
    """A sentence where a parameter stops moving that moves in the same steps of the baseline's training, else empty."""
    for before, after in pairs:
        known = {(move.first_step, move.step): move for move in before.moves}
        for move in after.moves:
            other = known.get((move.first_step, move.step))
            if other is None or other.parameters != move.parameters:
                continue
            if len(move.still) == move.parameters and move.step - move.first_step < _SKIPPED:
                continue
            slow = set(other.slow)
            name = next((name for place, name in zip(move.still, move.names, strict=True) if place not in slow), None)
            if name is not None:
                where = f"from step {move.first_step} to {move.step} of the training from seed {after.seed}"
                return f"{name} is not updated {where}"
    return ""
