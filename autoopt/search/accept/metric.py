"""The target metric of the candidate's trainings against the baseline's, given the noise of the metric itself.

Two ways to be as good: the metric at the same step is no worse than the tolerance, or the target is reached from every
seed and the further steps to it are known well enough to be charged. How far seeds scatter is what the baseline's own
trainings show, as MLPerf's reference convergence points do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

import numpy as np
from scipy.stats import t as student

from autoopt.benchmark.target import Mode, Parts, fit, parts
from autoopt.records import Estimate, Noise, Objective, Quality
from autoopt.records.messages import WHOLE_RUN, TrainingRun
from autoopt.search.accept.evidence import FEWEST_SEEDS, Evidence, Pairs
from autoopt.search.accept.trainings import SCATTER, SCATTER_DOF, ratio_of_pairs
from autoopt.search.compare.statistics import student_reach

_PRIOR_DOF = 1.0

_OFTEN = 0.75
"""Evaluations that are closer than this share of the baseline's distance are more frequent ones."""

_POWER = 0.84
"""Standard errors by which a loss must lie beyond a bound to be beyond it in 80 % of all cases."""

_MOST_SHOWN = 100
"""More seeds than this nobody trains for a verdict."""

_LOST_TAIL = 0.002
"""Chance that an identical change reads as lost at one screening; there are three at most."""

_NOISES = 3.0
"""Standard deviations over seeds by which a metric must lie below the target to have fallen."""


@dataclass(frozen=True)
class MetricDifference:
    """How much better the candidate's metric is (positive: better), over seeds.

    ``error``: standard error of ``estimate``; ``margin``: tolerance times the target metric; ``highest``: its upper
    bound at the confidence that a loss is claimed with; ``known_spread``: seeds, or seed noise measured before, carry
    the interval. One seed alone has none, nor have whole runs of a script that sets its own.
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
    def confirmed(self) -> bool:
        """The lower bound of the difference is at or above the tolerance's loss."""
        return self.estimate.n >= FEWEST_SEEDS and self.estimate.low >= -self.margin

    @property
    def detectable(self) -> float | None:
        """The loss, in tolerances, that would have been noticed with 80 %; None where nothing reports the spread.

        What counts as shown to be as good is refused where a loss brings its lower bound below the tolerance; what is
        not shown is refused where it is certainly worse.
        """
        if not self.known_spread or self.estimate.n < FEWEST_SEEDS or self.margin <= 0:
            return None
        if self.confirmed:
            loss = self.margin - (self.estimate.value - self.estimate.low) + _POWER * self.error
        else:
            loss = max(self.margin, self.highest - self.estimate.value) + _POWER * self.error
        return max(loss, 0.0) / self.margin

    @property
    def seeds_wanted(self) -> int | None:
        """Seeds from which a change that loses no more than was seen would be shown to be as good; None: too many."""
        if not self.known_spread or self.confirmed or self.lost:
            return None
        spread, room = self.error * math.sqrt(self.estimate.n / 2), self.margin + min(self.estimate.value, 0.0)
        return fewest_seeds(spread, room, _MOST_SHOWN)


def fewest_seeds(spread: float, margin: float, most: int) -> int | None:
    """Seeds, of ``most``, from which a change that loses nothing is as likely as not to be confirmed to lose less than
    the margin, by the standard deviation of one training's value over seeds; None where not even those would do."""
    known = range(FEWEST_SEEDS, most + 1)
    return next((n for n in known if student_reach(n) * spread * math.sqrt(2 / n) <= margin), None)


def seed_noise(runs: Sequence[TrainingRun], mode: Mode) -> float | None:
    """Standard deviation of the metric over seeds, at the last step that all runs evaluated; None under two runs."""
    fits = [fitted for run in runs if (fitted := fit(run.curve, mode)) is not None]
    if len(fits) < 2:
        return None
    last = min(float(fitted.steps[-1]) for fitted in fits)
    return float(np.std([fitted.at(last) for fitted in fits], ddof=1))


def with_seed_noise(evidence: Evidence) -> Noise:
    """The noise with the seed noise of the baseline's runs, where it has none yet."""
    if evidence.noise.seed_noise is not None:
        return evidence.noise
    own = seed_noise(evidence.baseline_runs, evidence.objective.mode)
    return evidence.noise.model_copy(update={"seed_noise": own})


def metric_difference(pairs: Pairs, objective: Objective, noise: Noise) -> MetricDifference | None:
    """Compares the monotone fits of both at the last step that both evaluated, seed by seed; None without such a pair.

    The spread over seeds rests on these pairs and on the baseline's own seed noise, as one value; without that, on how
    far evaluations scatter around the fit.
    """
    if objective.metric is None:
        return None
    known, residuals = list[tuple[float, float]](), list[float]()
    for before, after in pairs:
        left, right = (fit(run.curve, objective.mode) for run in (before, after))
        if left is None or right is None:
            continue
        step = min(float(left.steps[-1]), float(right.steps[-1]))
        here = left.at(step), right.at(step)
        if before.stopped != WHOLE_RUN or here not in known:  # a script that sets its own seed, run again, is no other
            known.append(here)
            residuals += [left.residual, right.residual]
    if not known:
        return None
    befores, afters = np.array(known).T
    differences = (afters - befores) * (1.0 if objective.mode == "max" else -1.0)
    n, value = len(known), float(differences.mean())
    one_seed = noise.seed_noise if noise.seed_noise is not None else float(np.mean(residuals))
    square = _PRIOR_DOF * 2.0 * one_seed**2 + float(np.square(differences - value).sum())
    dof = _PRIOR_DOF + n - 1
    error = math.sqrt(square / dof / n)
    reach = student_reach(dof) * error
    level = objective.target if objective.target is not None else float(befores.mean())
    return MetricDifference(
        estimate=Estimate(value=value, low=value - reach, high=value + reach, n=n),
        error=error,
        margin=objective.tolerance * abs(level),
        baseline=float(befores.mean()),
        candidate=float(afters.mean()),
        highest=value + float(student.ppf(1 - _LOST_TAIL, dof)) * error,
        known_spread=bool(noise.seed_noise) or len(set(differences)) > 1 or (n > 1 and value == 0),
    )


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
    least = "" if detectable is None else f"{detectable:.{1 if detectable < 10 else 0}f} tolerances"
    passed = difference.confirmed if difference.confirmed or difference.lost else None
    if least and not difference.lost:
        seen += f"; a loss of {least} would have been seen with 80 %"
    if wanted is not None:
        seen += f"; about {wanted} seeds would decide it"
    turned = {"value": -estimate.value, "low": -estimate.high, "high": -estimate.low}
    # candidate less baseline: the sign turns where less is better
    in_unit = estimate.model_copy(update=turned) if objective.mode == "min" else estimate
    return Quality(
        method="metric",
        level="trained" if difference.confirmed else None if difference.lost else "undecided",
        passed=passed,
        metric=objective.metric,
        baseline=difference.baseline,
        candidate=difference.candidate,
        difference=in_unit if difference.known_spread else None,
        margin=difference.margin,
        seeds=estimate.n,
        detectable_loss=detectable,
        seeds_wanted=wanted,
        rests_on="" if difference.lost else f"the metric at the same step, from {_seeds(estimate.n)}",
        would_miss="" if not least or difference.lost else f"losses below {least}",
        detail=f"quality undecided: observed {seen}" if passed is None else seen,
    )


def _seeds(count: int | None) -> str:
    return "one seed" if count == 1 else f"{count} seeds"


def parts_to(run: TrainingRun, objective: Objective, step_seconds: float | None = None) -> Parts | None:
    """The parts of a run to the objective's target; None where it did not reach it."""
    return parts(run, objective.target, objective.mode, step_seconds)


def unlearned(pairs: Pairs, objective: Objective) -> str:
    """A sentence where a training of the plan ends worse than the baseline's began, which has learnt; else empty. That
    much is no chance, though one seed shows no spread."""
    sign = 1.0 if objective.mode == "max" else -1.0
    for before, after in pairs:
        known = [[p.metric for p in run.curve.points if p.metric is not None] for run in (before, after)]
        if len(known[0]) < 2 or not known[1]:
            continue
        (first, *_, last), end = known[0], known[1][-1]
        if sign * last > sign * first > sign * end:
            text = f"{objective.metric} ends at {end:.4g}, worse than the {first:.4g} that the baseline begins with"
            return f"{text} on its way to {last:.4g}"
    return ""


def further_steps(pairs: Pairs, evidence: Evidence) -> Estimate | None:
    """Steps to the target of the candidate over the baseline's: above 1 it takes more of them. Their scatter is that of
    the pairs and of the baseline's seeds.

    None with fewer seeds than a verdict takes, without a target, or where it was not reached from each.
    """
    objective = evidence.objective
    if objective.target is None:
        return None
    known = [(parts_to(old, objective), parts_to(new, objective)) for old, new in pairs]
    logs = [math.log(new.steps / old.steps) for old, new in known if old and new and min(old.steps, new.steps) > 0]
    if len(logs) < max(len(pairs), FEWEST_SEEDS):
        return None
    return ratio_of_pairs(logs, steps_spread(evidence))


def detectable_steps(further: Estimate, allowed: float | None = None) -> float:
    """The ratio that would have been noticed with 80 %: surely above 1, or not surely below what is allowed."""
    reach, dof = math.log(further.high / further.value), further.n + SCATTER_DOF - 1
    power = reach * float(student.ppf(0.8, dof)) / student_reach(dof)
    return math.exp(reach + power) if allowed is None else max(allowed * math.exp(power - reach), 1.0)


def _steps_text(further: Estimate) -> str:
    return further.text(".3g", " times the baseline's steps")


def steps_spread(evidence: Evidence) -> float:
    """Standard deviation of the log ratio of two trainings' steps to the target, of the baseline's own seeds."""
    runs = (parts_to(run, evidence.objective) for run in evidence.baseline_runs)
    reached = [found.steps for found in runs if found is not None and found.steps > 0]
    own = float(np.std(np.log(reached), ddof=1)) if len(reached) > 1 else 0.0
    return max(math.sqrt(2) * own, SCATTER)


def trained_quality(quality: Quality, further: Estimate | None, allowed: float) -> Quality:
    """The quality of a metric that is too noisy to show a loss, by the further steps to the target, which are charged.

    ``allowed``: the ratio of steps that the speedup of a step pays for: the upper bound has to lie under it.
    """
    if quality.passed is not None or further is None:
        return quality
    text = f"the target is reached from each of {further.n} seeds in {_steps_text(further)}"
    if further.high >= allowed:
        detail = f"{quality.detail}; {text}, where the speedup pays for {allowed:.3g}"
        return quality.model_copy(update={"detail": detail})
    missed = f"{detectable_steps(further, allowed):.3g} times the steps"
    found = {
        "rests_on": f"steps to the target, from {_seeds(further.n)}",
        "would_miss": f"less than {missed}, and losses of the metric that take no further steps to the target",
        "detail": f"{text}, where the speedup pays for {allowed:.3g}; {missed} would have been refused with 80 %",
    }
    passed = {"level": "trained", "passed": True, "step_penalty": further, "seeds_wanted": None}
    return quality.model_copy(update={**passed, **found})


def arrived(evidence: Evidence) -> Quality:
    """``trained`` where the plan came to the target from every seed, in its own steps; ``undecided`` where it did not.
    Metrics are those at the end of each side's own training, which the target ends."""
    pairs, objective = evidence.paired(), evidence.objective
    there = sum(parts_to(new, objective) is not None for _, new in pairs)
    before, after = (mean_best([pair[side] for pair in pairs], objective) for side in (0, 1))
    further = further_steps(pairs, evidence)
    reached = f"{objective.metric} {objective.target:g} reached from {there} of {len(pairs)} seeds, in its own steps"
    reached += f" ({after:.4g} at their ends, where the baseline has {before:.4g})" if after and before else ""
    reached += f"; {_steps_text(further)}" if further is not None else ""
    missed = f"less than {detectable_steps(further):.3g} times the steps, and " if further is not None else ""
    passed = True if there == len(pairs) else None
    return Quality(
        method="metric",
        level="trained" if passed else "undecided",
        passed=passed,
        metric=objective.metric,
        baseline=before,
        candidate=after,
        seeds=len(pairs),
        rests_on=f"steps to the target, from {_seeds(there)}" if passed else "",
        would_miss=f"{missed}losses of the metric beyond the target" if passed else "",
        detail=f"{'' if passed else 'quality undecided: '}{reached}",
    )


def mean_best(runs: Sequence[TrainingRun], objective: Objective) -> float | None:
    """The mean over seeds of the best metric that each training came to; None where one was not evaluated."""
    best = [_best(run, objective) for run in runs]
    return fmean(value for value in best if value is not None) if best and None not in best else None


def _best(run: TrainingRun, objective: Objective) -> float | None:
    metrics = [point.metric for point in run.curve.points if point.metric is not None]
    return (max if objective.mode == "max" else min)(metrics, default=None)


def missed_target(pairs: Pairs, objective: Objective) -> str:
    """A sentence where the target is missed from a seed from which the baseline reaches it, else empty."""
    if objective.target is None:
        return ""
    short = [new for old, new in pairs if parts_to(old, objective) and not parts_to(new, objective)]
    if not short:
        return ""
    best = _best(short[0], objective)
    return (
        f"{objective.metric} {objective.target:g} not reached in {short[0].steps} steps from {len(short)} of "
        f"{len(pairs)} seeds, where the baseline reaches it (best {'not evaluated' if best is None else f'{best:.4g}'})"
    )


def fell_after_target(pairs: Pairs, objective: Objective, noise: Noise) -> str:
    """A sentence where the metric falls after the target was confirmed, from every seed, and the baseline's does not:
    the median of the evaluations beyond lies below it by more than the tolerance and what chance explains."""
    if objective.target is None:
        return ""
    target, sign = objective.target, 1.0 if objective.mode == "max" else -1.0
    margin = max(objective.tolerance * abs(target), _NOISES * (noise.seed_noise or 0.0))
    values = [[[p.metric for p in run.past if p.metric is not None] for run in pair] for pair in pairs]
    both = [[sign * (float(np.median(side)) - target) for side in sides] for sides in values if all(sides)]
    fallen = [new for old, new in both if new < -margin <= old]
    if len(both) < FEWEST_SEEDS or len(fallen) < len(both):
        return ""
    return (
        f"{objective.metric} falls by {-float(np.median(fallen)):.3g} below the target when trained on beyond it, "
        f"from each of {len(fallen)} seeds; the baseline's does not"
    )


def fewer_evaluated(pairs: Pairs) -> str:
    """A sentence where the candidate was evaluated on fewer samples than the baseline, or more often; else empty.

    More often is by steps and by samples, for another batch size changes one of the two alone: it meets the target by
    chance more often then.
    """
    for before, after in pairs:
        left, right = before.evaluated_samples, after.evaluated_samples
        if left is not None and right is not None and right < left:
            return f"evaluated on {right} samples where the baseline was evaluated on {left}"
        befores, afters = _distances(before), _distances(after)
        if min(len(befores), len(afters)) < 2:
            continue
        old, new = float(np.median(befores)), max(afters)  # the last one of a run that was cut off is shorter
        samples = new, old
        if after.samples is not None and before.samples is not None:
            samples = new * after.samples / after.steps, old * before.samples / before.steps
        if new < _OFTEN * old and samples[0] < _OFTEN * samples[1]:
            return f"evaluated every {new:g} steps where the baseline was evaluated every {old:g}"
    return ""


def _distances(run: TrainingRun) -> list[float]:
    """Steps from each evaluation to the next; empty for a run without steps."""
    steps = [point.step for point in run.curve.points if point.metric is not None]
    return [float(late - early) for early, late in pairwise(steps)] if run.steps else []
