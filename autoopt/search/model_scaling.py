"""Model sizes that were trained, as points, and the power laws fitted to them. Nothing is trained for it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import f as fisher
from scipy.stats import linregress

from autoopt.records import Estimate, JsonDict, Objective, Plan
from autoopt.records.messages import TrainingRun
from autoopt.records.model_scaling import FittedAt, ModelScaling, ModelSizePoint, PowerLaw, SizeRun
from autoopt.search.accept.trainings import Trainings
from autoopt.search.compare.statistics import student_reach
from autoopt.search.state import SearchState

STRATEGY = "model_size"

Array = NDArray[np.float64]

Sizes = list[tuple[JsonDict, int | None, tuple[TrainingRun, ...]]]
"""Arguments of ``build``, the trial's number, and the trainings of a size."""


def model_scaling(state: SearchState, trainings: Trainings) -> ModelScaling | None:
    """The sizes of the run with what they learnt; None where no other size was tried."""
    if not any(trial.strategy == STRATEGY for trial in state.trials):
        return None
    return scaling_of(trained_sizes(state, trainings), state.objective)


def trained_sizes(state: SearchState, trainings: Trainings) -> Sizes:
    """The largest family of plans that differ in size alone and were trained, the model as it is among them."""
    families: dict[str, dict[str, tuple[Plan, int | None]]] = {}
    for trial in state.trials:
        comparison = state.comparisons.get(trial.id)
        if trial.strategy != STRATEGY or comparison is None:
            continue
        plan = comparison.candidate.plan
        family = families.setdefault(plan.without(STRATEGY).key, {})
        family.setdefault(plan.without(STRATEGY).key, (plan.without(STRATEGY), None))
        family.setdefault(plan.key, (plan, trial.id))
    found = [
        [((p.setting(STRATEGY) or {}).get("arguments", {}), n, trainings.all_of(p)) for p, n in family.values()]
        for family in families.values()
    ]
    known = [[size for size in family if any(run.trained_parameters for run in size[2])] for family in found]
    return max(known, key=len, default=[])


def scaling_of(sizes: Sizes, objective: Objective) -> ModelScaling:
    """The document of sizes that were trained: each one's trainings, and both power laws or why there is none."""
    steps = common_step(run for _, _, runs in sizes for run in runs)
    points = sorted((_point(*size, steps) for size in sizes), key=lambda point: point.parameters)
    document = ModelScaling(
        metric=objective.metric, mode=objective.mode, target=objective.target, steps=steps, points=tuple(points)
    )
    laws, missing = dict[str, PowerLaw](), dict[str, str]()
    for name, make in (("error", _learnt), ("seconds", _timed)):
        try:
            laws[name] = make(document)
        except _NoLawError as why:
            missing[name] = str(why)
    return document.model_copy(update={**laws, "missing": missing})


class _NoLawError(Exception):
    """Why there is no power law."""


def common_step(runs: Iterable[TrainingRun]) -> int | None:
    """The last step at which all trainings were evaluated; None where there is none."""
    evaluated = [{point.step for point in run.curve.points if point.metric is not None} for run in runs]
    return max(set.intersection(*evaluated), default=None) if evaluated else None


def _point(arguments: JsonDict, trial: int | None, runs: tuple[TrainingRun, ...], steps: int | None) -> ModelSizePoint:
    return ModelSizePoint(
        arguments=arguments,
        trial=trial,
        parameters=next(run.trained_parameters for run in runs if run.trained_parameters),
        runs=tuple(
            SizeRun(
                seed=run.seed,
                metric=next((point.metric for point in run.curve.points if point.step == steps), None),
                seconds=run.curve.seconds_to_target,
                reached=run.curve.reached,
            )
            for run in runs
        ),
    )


def _learnt(document: ModelScaling) -> PowerLaw:
    """The law of the error after the same steps."""
    metrics = [(point.parameters, run.metric) for point in document.points for run in point.runs]
    known = [(parameters, metric) for parameters, metric in metrics if metric is not None]
    if metrics and (document.steps is None or len(known) < len(metrics)):
        raise _NoLawError("the trainings have no evaluation after the same number of steps")
    errors = [(parameters, _error(metric, document.mode)) for parameters, metric in known]
    if any(error is None for _, error in errors):
        best = "the metric is not between zero and one, so that its distance from the best possible one is not known"
        raise _NoLawError(best if document.mode == "max" else "the metric is not above zero")
    target = None if document.target is None else _error(document.target, document.mode)
    return _law([(parameters, error) for parameters, error in errors if error is not None], "error", target)


def _error(metric: float, mode: str) -> float | None:
    """A quantity with a power law: a metric that is to be small, or what one between 0 and 1 lacks; above 0."""
    error = metric if mode == "min" else 1.0 - metric
    return error if error > 0 and (mode == "min" or error < 1) else None


def _timed(document: ModelScaling) -> PowerLaw:
    """The law of the seconds to the target, of sizes that reached it from every seed."""
    whole = [point for point in document.points if all(run.seconds for run in point.runs)]
    seconds = [(point.parameters, run.seconds) for point in whole for run in point.runs if run.seconds]
    every = len(document.points)
    missed = "" if len(whole) == every else f": {every - len(whole)} of {every} missed the target from a seed"
    return _law(seconds, "seconds", missed=missed)


def _law(
    points: list[tuple[int, float]], of: Literal["error", "seconds"], target: float | None = None, missed: str = ""
) -> PowerLaw:
    law, sizes = fit(points, of, target), len({parameters for parameters, _ in points})
    if law is None:
        few = f"{sizes} {'size' if sizes == 1 else 'sizes'} of {FEWEST_SIZES} that a line needs"
        raise _NoLawError(few + missed)
    return law


FEWEST_SIZES = 3
BEYOND = 10.0
"""Times the largest size, and the smallest one, beyond which a line says nothing."""
BENT = 0.1
"""Chance at which sizes on a line look as far from it as they do: below that they are taken as they are."""
_PLACES = 17


@dataclass(frozen=True)
class Line:
    """A least-squares line ``y = mean + slope * (x - center)``, with what its bounds need.

    ``spread``: sum of squares of x about ``center``; ``scatter``: standard deviation of y about the line; ``width``:
    quantile of Student's t.
    """

    center: float
    mean: float
    slope: float
    scatter: float
    spread: float
    count: int
    width: float

    @property
    def error(self) -> float:
        """Standard error of the slope."""
        return self.scatter / sqrt(self.spread)

    def at(self, x: float) -> tuple[float, float, float]:
        """The line at a place: value, low and high of its mean there."""
        value = self.mean + self.slope * (x - self.center)
        half = self.width * self.scatter * sqrt(1 / self.count + (x - self.center) ** 2 / self.spread)
        return value, value - half, value + half

    def where(self, y: float) -> tuple[float, float, float] | None:
        """Where the line meets a value, with Fieller's bounds; None where the slope's bounds hold 0."""
        off, t2 = self.mean - y, self.width**2
        sure = self.slope**2 - t2 * self.error**2
        if sure <= 0:
            return None
        square = t2 * self.scatter**2 * (off**2 / self.spread + sure / self.count)
        ends = [self.center + (-self.slope * off + sign * sqrt(square)) / sure for sign in (-1, 1)]
        value = self.center - off / self.slope
        return value, min(*ends, value), max(*ends, value)


def line_of(x: ArrayLike, y: ArrayLike) -> Line:
    """The least-squares line through three points or more, of two places at least."""
    x, y = np.asarray(x), np.asarray(y)
    fitted = linregress(x, y)
    left = y - (fitted.intercept + fitted.slope * x)  # its own error is none for equal values
    scatter = sqrt(float(np.square(left).sum()) / (len(x) - 2))
    center, spread = float(x.mean()), float(np.square(x - x.mean()).sum())
    width = student_reach(len(x) - 2)
    return Line(center, float(y.mean()), float(fitted.slope), scatter, spread, len(x), width)


def fit(
    points: Sequence[tuple[float, float]], of: Literal["error", "seconds"], target: float | None = None
) -> PowerLaw | None:
    """The power law of values over sizes; None where there are fewer than three sizes.

    Trainings of one size show how they scatter. Where the sizes are no farther from a line than that, every training
    counts as an observation; where they are, a size counts as one, and the bounds are those of so few.

    Args:
        points: parameters and value of each training, all above 0.
        target: value at which the size is asked for; None: at none.
    """
    x, y = np.log(np.array(points, dtype=np.float64).reshape(-1, 2)).T
    sizes = sorted(set(x))
    if len(sizes) < FEWEST_SIZES:
        return None
    line, by_size = line_of(x, y), [y[x == size] for size in sizes]
    grouped = _bent(line, by_size)
    if grouped:
        line = line_of(sizes, [each.mean() for each in by_size])
    half, ends = line.width * line.error, ("parameters", "value", "low", "high")
    places = ((x, *line.at(x)) for x in np.linspace(sizes[0], sizes[-1], _PLACES))
    at_target, note = (None, "") if target is None else _size_at(line, log(target), sizes)
    return PowerLaw(
        of=of,
        exponent=Estimate(value=line.slope, low=line.slope - half, high=line.slope + half, n=line.count),
        standard_error=line.error,
        scatter=line.scatter,
        runs=len(points),
        sizes=len(sizes),
        by_size=grouped,
        line=tuple(FittedAt(**dict(zip(ends, map(exp, place), strict=True))) for place in places),
        at_target=at_target,
        note=note,
    )


def _bent(line: Line, by_size: list[Array]) -> bool:
    """Whether sizes are farther from the line than trainings of one size are from each other (lack of fit)."""
    within = line.count - len(by_size)
    if within == 0:
        return False
    pure = sum(float(np.square(each - each.mean()).sum()) for each in by_size)
    lack = max(0.0, line.scatter**2 * (line.count - 2) - pure)
    if pure <= 0:
        return lack > 0
    ratio = lack / (len(by_size) - 2) / (pure / within)
    return bool(fisher.sf(ratio, len(by_size) - 2, within) < BENT)


def _size_at(line: Line, y: float, sizes: list[float]) -> tuple[Estimate | None, str]:
    """Parameters at which the line meets a value, or why that is not reported."""
    found = line.where(y)
    if found is None:
        return None, "the bounds of the exponent hold zero: that the size matters is not shown"
    low, high = min(sizes) - log(BEYOND), max(sizes) + log(BEYOND)
    if not low <= found[0] <= high:
        return None, f"the line meets the target more than {BEYOND:g} times beyond the sizes that were trained"
    if found[1] < low or found[2] > high:
        return None, f"its bounds reach more than {BEYOND:g} times beyond the sizes that were trained"
    value, least, most = (exp(x) for x in found)
    return Estimate(value=value, low=least, high=most, n=line.count), ""
