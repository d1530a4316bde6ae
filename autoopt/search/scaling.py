"""How the final plan scales: the same in fewer processes, each compared with one, in what time the run has left; and
model sizes that were trained, as points, with the power laws fitted to them, for which nothing is trained."""

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
from autoopt.records.distributed import Scaling, ScalingPoint
from autoopt.records.messages import TrainingRun
from autoopt.records.model_scaling import FittedAt, ModelScaling, ModelSizePoint, PowerLaw, SizeRun
from autoopt.search.accept.trainings import Trainings
from autoopt.search.compare.arm import TrialArm
from autoopt.search.compare.comparison import Decision
from autoopt.search.compare.statistics import student_reach
from autoopt.search.run_context import RunContext
from autoopt.search.state import SearchState
from autoopt.simplify.pipeline import forecasts

UNTIL_ERROR = 0.02
"""Standard error of a ratio at which a point is known well enough."""


def scaling(context: RunContext) -> Scaling | None:
    """Throughput of the incumbent in several processes over one; None where it trains in one.

    Of a script that a launcher starts each process has a batch of the script's size, however many there are. What does
    not fit into the budget is noted as missing.
    """
    state, plan = context.state, context.state.incumbent
    most = max(plan.processes, state.facts.processes)
    if most < 2:
        return None
    points, wanted = list[ScalingPoint](), counts(most)
    for number, count in enumerate(wanted):
        left = context.left()
        if left < context.allocation.comparison:
            state.missing += [f"scaling to {later} processes: no time was left" for later in wanted[number:]]
            break
        point = _measured(context, plan, count, left / (len(wanted) - number))
        if point is not None:
            points.append(point)
    # else the speedup of the trial that made it so many processes, on the plan of its time
    made = (trial.throughput for trial in state.kept() if trial.setting.get("processes") == most)
    found = next((throughput for throughput in made if throughput), None)
    if found is not None and most not in {point.processes for point in points}:
        points.append(point_of(most, found, "trial"))
    profile = state.profiles.get(plan.key)
    sent = profile.communication if profile is not None else None
    forecast, round_ = None, next((round_ for round_ in reversed(state.rounds) if round_.plan == plan), None)
    if sent is not None and round_ is not None:
        own_batch = state.facts.processes > 1
        forecast = forecasts(round_, sent, own_batch=own_batch, cores=state.environment.cores) or None
    if forecast is None:
        state.missing.append("scaling.forecast: messages of the final plan were not measured")
    return Scaling(
        points=tuple(sorted(points, key=lambda point: point.processes)), communication=sent, forecast=forecast
    )


def counts(processes: int) -> list[int]:
    """Numbers of processes to measure: all of them first, then powers of two below."""
    return [processes, *(2**power for power in range(1, (processes - 1).bit_length()))]


def _measured(context: RunContext, plan: Plan, count: int, seconds: float) -> ScalingPoint | None:
    def start(plan: Plan, label: str) -> TrialArm:
        """One of the processes of a script's launcher as the incumbent, and so many as the candidate."""
        return context.runner.start(plan, label, 1 if label == "incumbent" else count)

    comparison = context.compare(
        "scaling",
        plan.with_processes(1),
        plan.with_processes(count),
        seconds=seconds,
        deadline=context.allocation.budget,
        purpose=f"scaling to {count}",
        until_error=UNTIL_ERROR,
        start=start if context.state.facts.processes > 1 else None,
    )
    if comparison.decision is Decision.FAILED or comparison.estimate is None:
        context.state.missing.append(f"scaling to {count} processes: {comparison.reason}")
        return None
    return point_of(count, comparison.estimate, "measured")


def point_of(count: int, throughput: Estimate, source: Literal["measured", "trial"]) -> ScalingPoint:
    """The throughput of so many processes over one, and its efficiency: the same divided by their number."""
    each = {name: getattr(throughput, name) / count for name in ("value", "low", "high")}
    efficiency = throughput.model_copy(update=each)
    return ScalingPoint(processes=count, throughput=throughput, efficiency=efficiency, source=source)


STRATEGY = "model_size"

Array = NDArray[np.float64]

Sizes = list[tuple[JsonDict, int | None, tuple[TrainingRun, ...]]]
"""Arguments of ``build``, the trial's number, and the trainings of a size."""


def model_scaling(state: SearchState, trainings: Trainings) -> ModelScaling | None:
    """The sizes of the run with what they learnt; None where no other size was tried.

    They are the largest family of plans that differ in size alone and were trained, the model as it is among them.
    """
    resized = [trial for trial in state.trials if trial.strategy == STRATEGY]
    if not resized:
        return None
    families: dict[str, dict[str, tuple[Plan, int | None]]] = {}
    for trial in resized:
        comparison = state.comparisons.get(trial.id)
        if comparison is None:
            continue
        plan, usual = comparison.candidate.plan, comparison.candidate.plan.without(STRATEGY)
        family = families.setdefault(usual.key, {usual.key: (usual, None)})
        family.setdefault(plan.key, (plan, trial.id))
    found = [
        [((p.setting(STRATEGY) or {}).get("arguments", {}), n, trainings.all_of(p)) for p, n in family.values()]
        for family in families.values()
    ]
    known = [[size for size in family if any(run.trained_parameters for run in size[2])] for family in found]
    return scaling_of(max(known, key=len, default=[]), state.objective)


def scaling_of(sizes: Sizes, objective: Objective) -> ModelScaling:
    """The document of sizes that were trained: each one's trainings, and both power laws or why there is none."""
    steps = common_step(run for _, _, runs in sizes for run in runs)
    points = sorted((_point(*size, steps) for size in sizes), key=lambda point: point.parameters)
    document = ModelScaling(
        metric=objective.metric, mode=objective.mode, target=objective.target, steps=steps, points=tuple(points)
    )
    # seconds to the target are those of sizes that reached it from every seed
    whole = [point for point in points if all(run.seconds for run in point.runs)]
    seconds = [(point.parameters, run.seconds) for point in whole for run in point.runs if run.seconds]
    short = len(points) - len(whole)
    missed = f": {short} of {len(points)} missed the target from a seed" if short else ""
    found = {"error": _learnt(document), "seconds": _law(seconds, "seconds", missed=missed)}
    laws = {name: law for name, law in found.items() if isinstance(law, PowerLaw)}
    return document.model_copy(update={**laws, "missing": {n: why for n, why in found.items() if n not in laws}})


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


def _learnt(document: ModelScaling) -> PowerLaw | str:
    """The law of the error after the same steps, or why there is none."""
    metrics = [(point.parameters, run.metric) for point in document.points for run in point.runs]
    known = [(parameters, metric) for parameters, metric in metrics if metric is not None]
    if metrics and (document.steps is None or len(known) < len(metrics)):
        return "the trainings have no evaluation after the same number of steps"
    errors = [(parameters, _error(metric, document.mode)) for parameters, metric in known]
    if any(error is None for _, error in errors):
        best = "the metric is not between zero and one, so that its distance from the best possible one is not known"
        return best if document.mode == "max" else "the metric is not above zero"
    target = None if document.target is None else _error(document.target, document.mode)
    return _law([(parameters, error) for parameters, error in errors if error is not None], "error", target)


def _error(metric: float, mode: str) -> float | None:
    """A quantity with a power law: a metric that is to be small, or what one between 0 and 1 lacks; above 0."""
    error = metric if mode == "min" else 1.0 - metric
    return error if error > 0 and (mode == "min" or error < 1) else None


def _law(
    points: list[tuple[int, float]], of: Literal["error", "seconds"], target: float | None = None, missed: str = ""
) -> PowerLaw | str:
    sizes = len({parameters for parameters, _ in points})
    few = f"{sizes} {'size' if sizes == 1 else 'sizes'} of {FEWEST_SIZES} that a line needs{missed}"
    return fit(points, of, target) or few


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
