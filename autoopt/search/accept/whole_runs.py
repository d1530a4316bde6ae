"""Losses and movement of whole trainings, seed by seed: what a probe is too short to show.

Trainings that round otherwise, or draw otherwise, part by chance: what one learns at step 500 the other learns at 600,
and two networks that are trained against each other (a GAN) part for good. How far chance alone takes them is what the
baseline's own trainings show, which begin from other seeds or, of a script that sets its own, from weights that differ
by a rounding (``autoopt.benchmark.seeding``). Rates of the rule: ``docs/explanation/quality.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autoopt.records import Quality
from autoopt.records.messages import TrainingRun
from autoopt.search.accept.evidence import Evidence
from autoopt.search.accept.late import stood_still
from autoopt.search.accept.loss_paths import (
    CHANCE,
    PATH_TOLERANCE,
    Array,
    Common,
    common,
    error_of_mean,
    farthest,
    same_in_windows,
    same_within_tolerance,
    windows,
)
from autoopt.search.accept.quality import FEWEST_SEEDS
from autoopt.search.compare.comparison import LossPath

GROSS = 0.2
"""Share of the loss by which losses of one seed must differ to decide by themselves."""

SEEN_BY_PROBES = 64
"""Steps in which rounding has not grown yet, and which a probe sees as well: no spread excuses a difference in them."""

_BY_SPREAD = {2: 4.0}
_BY_SPREAD_OF_MORE = 2.0
"""How many times the baseline's own spread losses may lie off in all seeds, by the number of these: of trainings that
differ by chance alone one in a hundred lies further off."""


def apart(evidence: Evidence) -> list[tuple[int, float, Quality]]:
    """Seeds whose losses differ by more than scatter explains, how far (of the loss at the start), and where."""
    found = []
    for before, after in evidence.paired_with_incumbent():
        paths = common(_path(before), _path(after))
        whole = same_in_windows(paths) if paths is not None else None
        if paths is not None and whole is not None and whole.passed is False:
            found.append((after.seed, farthest(paths), whole))
    return found


def parted_late(paths: Common) -> bool:
    """Whether two paths of one seed are alike as far as a probe sees, and differ by less than is gross later.

    Rounding takes networks that are trained against each other apart within some hundred steps.
    """
    early = paths.steps < paths.steps[0] + SEEN_BY_PROBES
    start = Common(paths.steps[early], paths.before[early], paths.after[early])
    return same_within_tolerance(start).passed is True and farthest(paths) <= GROSS


def judge_whole_runs(quality: Quality, evidence: Evidence) -> Quality:
    """The quality that probes have shown, unless whole trainings show another training.

    Where the losses of one seed alone differ, that is told, and decides only where no chance explains it: of what
    rounds otherwise, whatever is gross wants a further seed. Of several seeds, what lies off in the same direction in
    all of them, by more than the baseline's own trainings do from each other, is another training.

    Args:
        quality: what is known without whole trainings.
        evidence: with the trainings.

    Returns:
        It, with what was seen; ``passed`` False for another training; None, level ``undecided``, where a further seed
        has to tell.
    """
    pairs = evidence.paired_with_incumbent()
    still = stood_still(pairs)
    if still:
        return Quality(method="loss_path", passed=False, detail=still)
    differing = apart(evidence)
    if not differing:
        return quality
    seed, share, whole = max(differing, key=lambda one: one[1])
    told = f"in training from seed {seed}: {whole.detail}"
    beside = _Beside.of(evidence) if len(pairs) >= FEWEST_SEEDS else None
    if beside is None:
        if share > GROSS and len(pairs) < FEWEST_SEEDS and quality.level == "equivalent":
            why = f"quality undecided: {told}, where probes saw the same but for rounding: a further seed has to tell"
            return quality.model_copy(update={"level": "undecided", "passed": None, "detail": why})
        if len(differing) == len(pairs) >= FEWEST_SEEDS or share > GROSS:
            return whole.model_copy(update={"method": "loss_path", "detail": told})
        return _told(quality, f"{told}, which one seed does not decide")
    by = _BY_SPREAD.get(beside.seeds, _BY_SPREAD_OF_MORE)
    if beside.alone() > 0 or beside.excess(by) > 0:
        return Quality(method="loss_path", passed=False, margin=whole.margin, detail=beside.words(by))
    if beside.excess(_BY_SPREAD_OF_MORE) > 0:
        detail = f"quality undecided: {beside.words(_BY_SPREAD_OF_MORE)}: a further seed has to tell"
        return quality.model_copy(update={"level": "undecided", "passed": None, "detail": detail})
    own = float(beside.spread.max())
    return _told(quality, f"{told}; trainings of the baseline lie up to {own:.2g} from each other")


def _told(quality: Quality, detail: str) -> Quality:
    return quality.model_copy(update={"detail": f"{quality.detail}; {detail}"})


@dataclass(frozen=True)
class _Beside:
    """Losses of candidate and baseline beside each other, by window.

    Args:
        first: the step that each window begins with.
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
    def of(evidence: Evidence) -> _Beside | None:
        """None where a pair has too few losses in common, or the baseline's trainings have."""
        pairs = [common(_path(old), _path(new)) for old, new in evidence.paired_with_incumbent()]
        runs = evidence.incumbent_runs or evidence.baseline_runs
        own = [common(_path(one), _path(other)) for one, other in combinations(runs, 2)]
        known = [paths for paths in (*pairs, *own) if paths is not None]
        if not own or len(known) < len(pairs) + len(own):
            return None
        steps = min(len(paths.difference) for paths in known)
        seeds, others = known[: len(pairs)], known[len(pairs) :]
        cut = [[paths.difference[:steps] for paths in group] for group in (seeds, others)]
        ends = np.cumsum([len(window) for window in windows(cut[0][0])])
        first = np.concatenate([[0.0], ends[:-1]])
        means, apart_by_itself = (np.array([_means(one) for one in group]) for group in cut)
        here = np.mean([_means(np.abs(paths.before[:steps])) for paths in seeds], axis=0)
        scale = float(np.mean([paths.scale for paths in seeds]))
        return _Beside(
            first=first,
            means=means,
            errors=np.array([[error_of_mean(window) for window in windows(one)] for one in cut[0]]),
            spread=_growing(np.sqrt(np.mean(np.square(apart_by_itself), axis=0)), first),
            margin=PATH_TOLERANCE * scale,
            level=np.maximum(here, scale),
        )

    @property
    def seeds(self) -> int:
        return len(self.means)

    def excess(self, by: float) -> float:
        """The largest difference that all seeds share, less what scatter and so many times the spread explain."""
        return float(self._excess(by).max())

    def alone(self) -> float:
        """The same of the one seed in which it is largest, beyond what is gross."""
        chance = np.maximum(CHANCE * self.errors, _BY_SPREAD[FEWEST_SEEDS] * self.spread)
        return float((np.abs(self.means) - GROSS * self.level - chance).max())

    def words(self, by: float) -> str:
        """A sentence on the window with the largest excess, or of the seed that decides alone."""
        shared = self.excess(by) >= self.alone()
        where = int(np.argmax(self._excess(by) if shared else np.abs(self.means).max(axis=0)))
        values = self.means[:, where]
        value = float(values[np.argmin(np.abs(values)) if shared else np.argmax(np.abs(values))])
        seeds = f"each of {self.seeds} seeds" if shared else "one seed"
        return (
            f"loss {abs(value):.3g} {'higher' if value > 0 else 'lower'} than the baseline's from step "
            f"{int(self.first[where])} on in trainings from {seeds} (tolerance {self.margin:.2g}; trainings of the "
            f"baseline lie {self.spread[where]:.2g} from each other)"
        )

    def _excess(self, by: float) -> Array:
        same = (np.sign(self.means) == np.sign(self.means[:1])).all(axis=0)
        shared = np.where(same, np.abs(self.means).min(axis=0), 0.0)
        chance = np.maximum(CHANCE * self.errors.max(axis=0), by * self.spread)
        return np.asarray(shared - self.margin - chance)


def _means(path: Array) -> Array:
    return np.array([window.mean() for window in windows(path)])


def _growing(apart_by_itself: Array, first: Array) -> Array:
    """Trainings that have parted stay so: the largest distance up to a window and the next one, none at the start."""
    following = np.append(apart_by_itself[1:], apart_by_itself[-1:])
    late = np.where(first >= SEEN_BY_PROBES, np.maximum(apart_by_itself, following), 0.0)
    return np.asarray(np.maximum.accumulate(late))


def _path(run: TrainingRun) -> LossPath:
    return LossPath(steps=tuple(range(len(run.losses))), losses=run.losses)
