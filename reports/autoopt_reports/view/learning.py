"""Same learning? Validation curves of the baseline and of the final plan, and their difference."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import TypeVar

from autoopt.records import Configuration, Quality, Result
from autoopt_reports.view import units
from autoopt_reports.view.quality import kept_trials
from autoopt_reports.view.text import Number, Phrase, interval, name, number, numbers, say

T = TypeVar("T")
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class CurveTable:
    """One training run: step, seconds and metric of each evaluation.

    ``path``: its pointer, from which those of its rows continue.
    """

    who: str
    seed: Number
    path: str
    rows: tuple[tuple[Number, ...], ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One arm: each seed's points, and the band that the seeds span, as (x, low, high)."""

    who: str
    seeds: tuple[Points, ...]
    band: tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """Final plan less baseline at equal steps, means over seeds."""

    points: Points
    margin: Number | None


class Learning:
    """Curves of these sides, each with its name, what was measured of it, and its pointer."""

    def __init__(self, result: Result, sides: list[tuple[str, Configuration, str]]) -> None:
        target = result.objective.target
        self.headline = _headline(result)
        self.metric = str(name(result.objective.metric or "metric", 40))
        self.by_seconds = tuple(_series(who, c, 1) for who, c, _ in sides if c.curves)
        self.by_steps = tuple(_series(who, c, 0) for who, c, _ in sides if c.curves)
        self.target = number(target, units.plain, "/objective/target") if target is not None else None
        self.difference = _difference(result)
        tables, self.thinned = list[CurveTable](), False
        for who, configuration, path in sides:
            for place, curve in enumerate(configuration.curves):
                here = f"{path}/curves/{place}"
                chosen = thin(tuple(enumerate(curve.points)), 24)
                self.thinned = self.thinned or len(chosen) < len(curve.points)
                forms = {"step": units.count, "seconds": units.duration, "metric": units.plain}
                rows = tuple(numbers(point, f"{here}/points/{index}", **forms) for index, point in chosen)
                tables.append(CurveTable(who, number(curve.seed, units.count, f"{here}/seed"), here, rows))
        self.tables = tuple(tables)


def learning_view(result: Result) -> Learning | None:
    """None where no curve was recorded."""
    sides = [("baseline", result.baseline, "/baseline"), ("final plan", result.best, "/best")]
    sides = sides if result.found else sides[:1]
    return Learning(result, sides) if any(_curves(measured, 0) for _, measured, _ in sides) else None


def at(points: Points, x: float) -> float | None:
    """The curve at ``x``, on the straight line between its neighbours; None outside of it."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return next((y for px, y in points if px == x), None)


def _curves(measured: Configuration, axis: int) -> tuple[Points, ...]:
    """(x, metric) of the evaluations that gave a metric, by training; ``axis`` 0: steps, 1: seconds."""
    curves = (
        tuple((float(p.step) if axis == 0 else p.seconds, p.metric) for p in curve.points if p.metric is not None)
        for curve in measured.curves
    )
    return tuple(filter(None, curves))


def _shared(curves: tuple[Points, ...]) -> list[tuple[float, list[float]]]:
    """The values of all curves, at each x of any of them that all of them reach."""
    found = []
    for x in sorted({x for points in curves for x, _ in points}):
        values = [value for points in curves if (value := at(points, x)) is not None]
        if len(values) == len(curves):
            found.append((x, values))
    return found


def _series(who: str, configuration: Configuration, axis: int) -> Series:
    seeds = _curves(configuration, axis)
    band = tuple((x, min(values), max(values)) for x, values in _shared(seeds)) if len(seeds) > 1 else ()
    return Series(who, tuple(thin(points) for points in seeds), thin(band))


def thin(points: tuple[T, ...], most: int = 48) -> tuple[T, ...]:
    """At most ``most`` points, evenly chosen, first and last among them."""
    if len(points) <= most:
        return points
    return tuple(points[round(i * (len(points) - 1) / (most - 1))] for i in range(most))


def _difference(result: Result) -> Difference | None:
    base, best = _curves(result.baseline, 0), _curves(result.best, 0)
    if not base or not best or not result.found:
        return None
    means = ((x, fmean(values[: len(base)]), fmean(values[len(base) :])) for x, values in _shared((*base, *best)))
    points = tuple((x, after - before) for x, before, after in means)
    tested, margin = _tested(result), None  # by a gate, with the tolerance in the metric's unit
    if tested is not None and tested[0].margin is not None:
        margin = number(tested[0].margin, units.plain, f"{tested[1]}/margin")
    return Difference(thin(points), margin) if points else None


def _tested(result: Result) -> tuple[Quality, str] | None:
    """The test of the final plan's metric; without one, that of the change kept last."""
    if result.quality is not None and result.quality.difference is not None:
        return result.quality, "/quality"
    for index, trial in reversed(kept_trials(result)):
        if trial.quality is not None and trial.quality.difference is not None:
            return trial.quality, f"/trials/{index}/quality"
    return None


def _headline(result: Result) -> Phrase:
    if not result.found:
        return say("The baseline's own curves; nothing was changed")
    tested = _tested(result)
    if tested is None:
        return say("The curves of the final plan and of the baseline; their difference was not put to a test")
    quality, path = tested
    assert quality.difference is not None
    shown = interval(quality.difference, f"{path}/difference", units.plain)
    what = "The final plan" if path == "/quality" else "The change kept last"
    if quality.margin is None:
        return say(what + " differs by {}", shown.phrase)
    within = max(abs(quality.difference.low), abs(quality.difference.high)) <= quality.margin
    words = " differs by {}, " + ("within" if within else "not wholly within") + " the tolerance of {}"
    return say(what + words, shown.phrase, number(quality.margin, units.plain, f"{path}/margin"))
