"""Models of several sizes: what each learnt, how long it took to the target, and the power laws through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoopt.records import Result
from autoopt.records.model_scaling import ModelScaling, ModelSizePoint, PowerLaw
from autoopt_reports.view import units
from autoopt_reports.view.text import Interval, Name, Number, Phrase, interval, join, name, number, say, setting_text

AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One training. ``trial``: None for the model as ``build()`` gives it by default."""

    size: Name
    trial: Number | None
    parameters: Number
    seed: Number
    metric: Number
    seconds: Number
    missed: bool


@dataclass(frozen=True, slots=True)
class LawView:
    """A law, or why there is none. ``line``: parameters, value, low and high; ``error_of``: the metric that is to be
    taken from one, for whoever draws it."""

    of: Literal["error", "seconds"]
    title: str
    said: Phrase
    exponent: Interval | None
    at_target: Interval | None
    line: tuple[tuple[float, float, float, float], ...]
    target: float | None


@dataclass(frozen=True, slots=True)
class ModelScalingView:
    headline: Phrase
    rows: tuple[SizeRow, ...]
    laws: tuple[LawView, ...]
    metric: Name
    mode: Literal["max", "min"]
    steps: Number


def model_scaling_view(result: Result) -> ModelScalingView | None:
    """None where no other size was tried."""
    found = result.model_scaling
    if found is None:
        return None
    return ModelScalingView(
        headline=_headline(found),
        rows=tuple(row for place, point in enumerate(found.points) for row in _rows(point, place)),
        laws=(_law(found, "error", found.error), _law(found, "seconds", found.seconds)),
        metric=name(found.metric or "metric", 40),
        mode=found.mode,
        steps=number(found.steps, units.count, "/model_scaling/steps"),
    )


def _rows(point: ModelSizePoint, place: int) -> list[SizeRow]:
    at = f"/model_scaling/points/{place}"
    size = name(setting_text(point.arguments) or AS_IT_IS, 80)
    trial = None if point.trial is None else number(point.trial, units.count, f"{at}/trial")
    parameters = number(point.parameters, units.count, f"{at}/parameters")
    return [
        SizeRow(
            size,
            trial,
            parameters,
            number(run.seed, units.count, f"{at}/runs/{index}/seed"),
            number(run.metric, units.plain, f"{at}/runs/{index}/metric"),
            number(run.seconds, units.duration, f"{at}/runs/{index}/seconds"),
            run.reached is False,
        )
        for index, run in enumerate(point.runs)
    ]


def _headline(found: ModelScaling) -> Phrase:
    """The size that just reaches the target where it is reported, else the exponents."""
    sizes = number(len(found.points), units.count, "/model_scaling/points", how="count")
    if not found.points:
        return say("Other sizes were tried, and none was trained to its end")
    if found.error is not None and found.error.at_target is not None:
        return say("Sizes of the model that were trained: {}; ", sizes) + _met(found, found.error)
    told = [_exponent(law) for law in (found.error, found.seconds) if law is not None]
    if not told:
        return say("Sizes of the model that were trained: {}; too few for a line through them", sizes)
    return say("Sizes of the model that were trained: {}; ", sizes) + join(told, "; ")


def _met(found: ModelScaling, law: PowerLaw) -> Phrase:
    steps = number(found.steps, units.count, "/model_scaling/steps")
    met = interval(law.at_target, "/model_scaling/error/at_target", units.count)
    assert met is not None
    return say("after {} steps the line meets the target at {} parameters", steps, met.phrase)


def _exponent(law: PowerLaw) -> Phrase:
    exponent = interval(law.exponent, f"/model_scaling/{law.of}/exponent", unit="")
    assert exponent is not None
    what = "the error" if law.of == "error" else "time to target"
    return say(what + " goes with the parameters to the power of {}", exponent.phrase)


def _law(found: ModelScaling, of: Literal["error", "seconds"], law: PowerLaw | None) -> LawView:
    title = "What was learnt" if of == "error" else "Time to target"
    if law is None:
        why = name(found.missing.get(of, ""), 300)
        return LawView(of, title, say("No line was fitted: {}", why), None, None, (), None)
    at = f"/model_scaling/{of}"
    exponent = interval(law.exponent, f"{at}/exponent", unit="")
    assert exponent is not None
    assert exponent.confidence is not None
    said = _exponent(law) + say(
        " ({} CI; standard error {}; {} trainings of {} sizes",
        exponent.confidence,
        number(law.standard_error, units.significant, f"{at}/standard_error"),
        number(law.runs, units.count, f"{at}/runs"),
        number(law.sizes, units.count, f"{at}/sizes"),
    )
    if law.by_size:
        said += say(", which lie farther from a line than trainings of one size from each other: each size counts once")
    said += say(")")
    met = interval(law.at_target, f"{at}/at_target", units.count)
    if met is not None:
        said += say("; ") + _met(found, law)
    elif law.note:
        said += say("; the size that just reaches the target is unknown: {}", name(law.note, 200))
    line = tuple((place.parameters, place.value, place.low, place.high) for place in law.line)
    target = None if of == "seconds" or found.target is None else _error(found.target, found.mode)
    return LawView(of, title, said, exponent, met, line, target if target is None or target > 0 else None)


def _error(metric: float, mode: str) -> float:
    return metric if mode == "min" else 1.0 - metric


def drawn(view: ModelScalingView, of: str) -> list[tuple[SizeRow, float, float]]:
    """Rows with parameters and value, above 0, as the law of ``of`` was fitted to them."""
    found = []
    for row in view.rows:
        value = row.seconds.value if of == "seconds" else row.metric.value
        if value is not None and of == "error":
            value = _error(value, view.mode)
        if value is not None and value > 0 and row.parameters.value:
            found.append((row, row.parameters.value, value))
    return found
