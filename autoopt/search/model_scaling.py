"""Model sizes that were trained, as points, and the power laws fitted to them. Nothing is trained for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from autoopt.records import JsonDict, Objective, Plan
from autoopt.records.messages import TrainingRun
from autoopt.records.model_scaling import ModelScaling, ModelSizePoint, PowerLaw, SizeRun
from autoopt.search.accept.trainings import Trainings
from autoopt.search.power_law import FEWEST_SIZES, fit
from autoopt.search.state import SearchState

STRATEGY = "model_size"

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
        [(_arguments(plan), number, trainings.all_of(plan)) for plan, number in family.values()]
        for family in families.values()
    ]
    known = [[size for size in family if any(run.trained_parameters for run in size[2])] for family in found]
    return max(known, key=len, default=[])


def _arguments(plan: Plan) -> JsonDict:
    return dict((plan.setting(STRATEGY) or {}).get("arguments", {}))


def scaling_of(sizes: Sizes, objective: Objective) -> ModelScaling:
    """The document of sizes that were trained: each one's trainings, and both power laws or why there is none."""
    steps = common_step(run for _, _, runs in sizes for run in runs)
    points = sorted((_point(*size, steps) for size in sizes), key=lambda point: point.parameters)
    document = ModelScaling(
        metric=objective.metric, mode=objective.mode, target=objective.target, steps=steps, points=tuple(points)
    )
    missing: dict[str, str] = {}
    laws: dict[str, PowerLaw | None] = {}
    for name, make in (("error", _learnt), ("seconds", _timed)):
        made = make(document)
        laws[name] = made if isinstance(made, PowerLaw) else None
        if isinstance(made, str):
            missing[name] = made
    return document.model_copy(update={**laws, "missing": missing})


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
    if document.steps is None or len(known) < len(metrics):
        return _too_few(0) if not metrics else "the trainings have no evaluation after the same number of steps"
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


def _timed(document: ModelScaling) -> PowerLaw | str:
    """The law of the seconds to the target, of sizes that reached it from every seed; or why there is none."""
    whole = [point for point in document.points if all(run.seconds for run in point.runs)]
    seconds = [(point.parameters, run.seconds) for point in whole for run in point.runs if run.seconds]
    found = _law(seconds, "seconds")
    if isinstance(found, str) and len(whole) < len(document.points):
        return f"{found}: {len(document.points) - len(whole)} of {len(document.points)} missed the target from a seed"
    return found


def _law(
    points: list[tuple[int, float]], of: Literal["error", "seconds"], target: float | None = None
) -> PowerLaw | str:
    law = fit(points, of, target)
    return law if law is not None else _too_few(len({parameters for parameters, _ in points}))


def _too_few(sizes: int) -> str:
    return f"{sizes} {'size' if sizes == 1 else 'sizes'} of {FEWEST_SIZES} that a line needs"
