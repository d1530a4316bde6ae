"""The target metric of the candidate against the baseline's, given the noise of the metric itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.stats import t as student

from autoopt.benchmark.target import Mode, fit
from autoopt.records import Estimate, Noise, Objective, Quality
from autoopt.records.messages import TrainingRun

Pairs = Sequence[tuple[TrainingRun, TrainingRun]]

_PRIOR_DOF = 1.0
FEWEST_SEEDS = 2
"""One seed never gives a verdict on the metric."""

_OFTEN = 0.75
"""Evaluations that are closer than this share of the baseline's distance are more frequent ones."""

_POWER = 0.84
"""Standard errors by which a loss must lie beyond a bound to be beyond it in 80 % of all cases."""

_MOST_SHOWN = 100
"""More seeds than this nobody trains for a verdict."""

_LOST_TAIL = 0.002
"""Chance that an identical change reads as lost at one look; there are three at most."""


@dataclass(frozen=True)
class MetricDifference:
    """How much better the candidate's metric is (positive: better), over seeds.

    ``error``: standard error of ``estimate``; ``margin``: tolerance times the target metric; ``highest``: its upper
    bound at the confidence that a loss is claimed with; ``known_spread``: seeds, or seed noise measured before,
    carry the interval. One seed alone has none, nor have trainings of a script that sets its own seed, which are alike.
    """

    estimate: Estimate
    error: float
    margin: float
    baseline: float
    candidate: float
    highest: float
    known_spread: bool = True

    @property
    def lost(self) -> bool:
        """Worse than the tolerance, and certainly worse than before."""
        return self.estimate.n >= FEWEST_SEEDS and self.estimate.value < -self.margin and self.highest < 0

    @property
    def detectable(self) -> float | None:
        """The loss, in tolerances, that would have been noticed with 80 %; None where nothing tells the spread.

        What counts as shown to be as good is refused where a loss brings its lower bound below the tolerance; what is
        not shown is refused where it is certainly worse.
        """
        if not self.known_spread or self.estimate.n < FEWEST_SEEDS or self.margin <= 0:
            return None
        if self.proved:
            loss = self.margin - (self.estimate.value - self.estimate.low) + _POWER * self.error
        else:
            loss = max(self.margin, self.highest - self.estimate.value) + _POWER * self.error
        return max(loss, 0.0) / self.margin

    @property
    def seeds_wanted(self) -> int | None:
        """Seeds from which a change that loses no more than was seen would be shown to be as good; None: too many."""
        if not self.known_spread or self.proved or self.lost:
            return None
        spread, room = self.error * math.sqrt(self.estimate.n / 2), self.margin + min(self.estimate.value, 0.0)
        return fewest_seeds(spread, room, _MOST_SHOWN)

    @property
    def proved(self) -> bool:
        """The lower bound of the difference is at or above the tolerance's loss."""
        return self.estimate.n >= FEWEST_SEEDS and self.estimate.low >= -self.margin


def fewest_seeds(spread: float, margin: float, most: int) -> int | None:
    """Seeds from which a change that loses nothing is as likely as not to be proved to lose less than the margin.

    Args:
        spread: standard deviation of the metric over seeds; how far evaluations scatter, where only one was trained.
        margin: the loss that is tolerated, with what the change was seen to gain.

    Returns:
        None where not even ``most`` of them would do.
    """
    known = range(FEWEST_SEEDS, most + 1)
    return next((n for n in known if float(student.ppf(0.975, n)) * spread * math.sqrt(2 / n) <= margin), None)


def seed_noise(runs: Sequence[TrainingRun], mode: Mode) -> float | None:
    """Standard deviation of the metric over seeds, at the last step that all runs evaluated; None under two runs."""
    fits = [fitted for run in runs if (fitted := fit(run.curve, mode)) is not None]
    if len(fits) < 2:
        return None
    last = min(float(fitted.steps[-1]) for fitted in fits)
    return float(np.std([fitted.at(last) for fitted in fits], ddof=1))


def metric_difference(pairs: Pairs, objective: Objective, noise: Noise) -> MetricDifference | None:
    """Compares the monotone fits of both at the last step that both evaluated, seed by seed.

    The spread over seeds rests on these pairs and on the baseline's own seed noise, as one value; without that, on how
    far evaluations scatter around the fit.

    Returns:
        None without one pair that both evaluated, or without a metric.
    """
    if objective.metric is None:
        return None
    sign = 1.0 if objective.mode == "max" else -1.0
    differences, befores, afters, residuals = [], [], [], []
    for before, after in pairs:
        left, right = fit(before.curve, objective.mode), fit(after.curve, objective.mode)
        if left is None or right is None:
            continue
        step = min(float(left.steps[-1]), float(right.steps[-1]))
        befores.append(left.at(step))
        afters.append(right.at(step))
        differences.append(sign * (afters[-1] - befores[-1]))
        residuals += [left.residual, right.residual]
    if not differences:
        return None
    n, value = len(differences), float(np.mean(differences))
    one_seed = noise.seed_noise if noise.seed_noise is not None else float(np.mean(residuals))
    prior = 2.0 * one_seed**2
    square = _PRIOR_DOF * prior + float(np.sum((np.array(differences) - value) ** 2))
    dof = _PRIOR_DOF + n - 1
    error = math.sqrt(square / dof / n)
    reach = float(student.ppf(0.975, dof)) * error
    level = objective.target if objective.target is not None else float(np.mean(befores))
    highest = value + float(student.ppf(1 - _LOST_TAIL, dof)) * error
    return MetricDifference(
        estimate=Estimate(value=value, low=value - reach, high=value + reach, n=n),
        error=error,
        margin=objective.tolerance * abs(level),
        baseline=float(np.mean(befores)),
        candidate=float(np.mean(afters)),
        highest=highest,
        known_spread=bool(noise.seed_noise) or len(set(differences)) > 1 or (n > 1 and value == 0),
    )


def with_seed_noise(noise: Noise, runs: Sequence[TrainingRun], objective: Objective) -> Noise:
    """The noise with the seed noise of these runs of the baseline, where it has none yet."""
    if noise.seed_noise is not None:
        return noise
    return noise.model_copy(update={"seed_noise": seed_noise(runs, objective.mode)})


def metric_quality(difference: MetricDifference, objective: Objective) -> Quality:
    """The document of a metric comparison; ``difference`` is in the metric's unit, positive where better."""
    estimate = difference.estimate
    spread = f" [{estimate.low:+.3g}, {estimate.high:+.3g}]" if difference.known_spread else ""
    seen = (
        f"{objective.metric} {difference.candidate:.4g} against {difference.baseline:.4g}: "
        f"{estimate.value:+.3g}{spread} over {estimate.n} seed{'s' if estimate.n > 1 else ''}"
        f"{'' if difference.known_spread else ', which gives no interval'}, tolerance {difference.margin:.3g}"
    )
    detectable, wanted = difference.detectable, difference.seeds_wanted
    if detectable is not None and not difference.lost:
        seen += f"; a loss of {_in_words(detectable)} tolerances would have been seen with 80 %"
    if wanted is not None:
        seen += f"; about {wanted} seeds would decide it"
    if not difference.proved and not difference.lost:
        seen = f"quality undecided: observed {seen}"
    return Quality(
        method="metric",
        level=None if difference.lost else "trained" if difference.proved else "undecided",
        passed=True if difference.proved else (False if difference.lost else None),
        metric=objective.metric,
        baseline=difference.baseline,
        candidate=difference.candidate,
        difference=_in_unit(estimate, objective) if difference.known_spread else None,
        margin=difference.margin,
        seeds=estimate.n,
        detectable_loss=detectable,
        seeds_wanted=wanted,
        rests_on="" if difference.lost else f"the metric at the same step, from {estimate.n} seeds",
        would_miss="" if detectable is None or difference.lost else f"losses below {_in_words(detectable)} tolerances",
        detail=seen,
    )


def _in_words(tolerances: float) -> str:
    return f"{tolerances:.1f}" if tolerances < 10 else f"{tolerances:.0f}"


def _in_unit(better: Estimate, objective: Objective) -> Estimate:
    """Candidate less baseline: the sign turns where less is better."""
    if objective.mode == "max":
        return better
    return better.model_copy(update={"value": -better.value, "low": -better.high, "high": -better.low})


def fewer_evaluated(pairs: Pairs) -> str | None:
    """A sentence where the candidate was evaluated on fewer samples than the baseline, or more often, else None."""
    for before, after in pairs:
        left, right = before.evaluated_samples, after.evaluated_samples
        if left is not None and right is not None and right < left:
            return f"evaluated on {right} samples where the baseline was evaluated on {left}"
        often = _more_often(before, after)
        if often:
            return often
    return None


def _more_often(before: TrainingRun, after: TrainingRun) -> str:
    """A sentence where a run is evaluated more often than before, by steps and by samples; empty where it is not.

    It meets the target by chance more often then. Another batch size changes one of the two alone.
    """
    befores, afters = _distances(before), _distances(after)
    if min(len(befores), len(afters)) < 2:
        return ""
    old, new = float(np.median(befores)), max(afters)  # the last one of a run that was cut off is shorter
    if after.samples is None or before.samples is None:
        samples = new, old
    else:
        samples = new * after.samples / after.steps, old * before.samples / before.steps
    if new >= _OFTEN * old or samples[0] >= _OFTEN * samples[1]:
        return ""
    return f"evaluated every {new:g} steps where the baseline was evaluated every {old:g}"


def _distances(run: TrainingRun) -> list[float]:
    """Steps from each evaluation to the next; empty for a run without steps."""
    steps = [point.step for point in run.curve.points if point.metric is not None]
    return [float(late - early) for early, late in pairwise(steps)] if run.steps else []
