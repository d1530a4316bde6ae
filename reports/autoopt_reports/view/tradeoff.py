"""Time against memory, and cost against quality: what a faster plan is paid with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autoopt.records import Configuration, Result, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, name, number, say


@dataclass(frozen=True, slots=True)
class Spot:
    """One arm. ``kind``: "baseline", "final" or a verdict; ``front``: nothing beats it on both axes."""

    label: Name | str
    kind: str
    x: Number | None
    y: Number
    front: bool = False
    knee: bool = False
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class Tradeoff:
    title: str
    headline: Phrase
    x_label: str
    y_label: str
    spots: tuple[Spot, ...]
    failed: tuple[Spot, ...]


def tradeoff_views(result: Result) -> tuple[Tradeoff, ...]:
    views = (_time_memory(result), _cost_quality(result))
    return tuple(view for view in views if view is not None)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points (both to be small) that no other point beats on both axes, by rising x."""
    order = sorted(range(len(points)), key=lambda i: points[i])
    front, best = [], math.inf
    for i in order:
        if points[i][1] < best:
            front.append(i)
            best = points[i][1]
    return front


def knee(points: Sequence[tuple[float, float]], front: Sequence[int]) -> int | None:
    """The point of the front farthest below the line between its ends, both axes scaled to 0..1.

    None where the front has fewer than three points, or none of them bulges.
    """
    if len(front) < 3:
        return None
    (x0, y0), (x1, y1) = points[front[0]], points[front[-1]]
    if x1 == x0 or y0 == y1:
        return None
    scaled = {i: ((points[i][0] - x0) / (x1 - x0), (points[i][1] - y1) / (y0 - y1)) for i in front}
    place = min(front, key=lambda i: sum(scaled[i]))
    return place if sum(scaled[place]) < 0.98 else None


def _time_memory(result: Result) -> Tradeoff | None:
    """Seconds for a thousand samples against peak memory."""
    spots: list[Spot] = []
    for kind, path, c in _contenders(result):
        if c.samples_per_second and c.peak_memory_bytes is not None:
            spots.append(
                Spot(
                    kind if kind == "baseline" else "final plan",
                    kind,
                    _thousand(c.samples_per_second, path),
                    number(c.peak_memory_bytes, units.bytes_, f"{path}/peak_memory_bytes"),
                )
            )
    failed: list[Spot] = []
    for index, trial in enumerate(result.trials):
        if trial.peak_memory_bytes is None:
            continue
        y = number(trial.peak_memory_bytes, units.bytes_, f"/trials/{index}/peak_memory_bytes")
        if trial.verdict is Verdict.FAILED:
            failed.append(Spot(_label(trial), "failed", None, y, trial=trial.id))
        elif trial.samples_per_second:
            spots.append(
                Spot(
                    _label(trial),
                    trial.verdict.value,
                    _thousand(trial.samples_per_second, f"/trials/{index}"),
                    y,
                    trial=trial.id,
                )
            )
    if len(spots) < 2:
        return None
    marked = _marked(spots)
    return Tradeoff(
        "Time against memory",
        _headline(marked, failed),
        "seconds per thousand samples",
        "peak memory",
        marked,
        tuple(failed),
    )


def _contenders(result: Result) -> list[tuple[str, str, Configuration]]:
    """Baseline and final plan; the baseline alone where nothing was kept."""
    found = [("baseline", "/baseline", result.baseline)]
    return [*found, ("final", "/best", result.best)] if result.found else found


def _thousand(samples_per_second: float, path: str) -> Number:
    seconds = 1000.0 / samples_per_second
    return Number(units.duration(seconds), seconds, (f"{path}/samples_per_second",), "per_thousand")


def _label(trial: Trial) -> Name:
    return change_name(trial.strategy, trial.setting, trial.companions, 60)


def _marked(spots: list[Spot]) -> tuple[Spot, ...]:
    points = [(s.x.value or 0.0, s.y.value or 0.0) if s.x else (math.inf, math.inf) for s in spots]
    # Only what may be chosen counts: a setting that lost quality is no point of the front.
    free = [i for i, s in enumerate(spots) if s.kind not in {"quality_lost", "failed"}]
    local = pareto([points[i] for i in free])
    front = [free[i] for i in local]
    bend = knee(points, front)
    return tuple(Spot(s.label, s.kind, s.x, s.y, i in front, i == bend, s.trial) for i, s in enumerate(spots))


def _headline(spots: tuple[Spot, ...], failed: list[Spot]) -> Phrase:
    bend = next((s for s in spots if s.knee), None)
    final = next((s for s in spots if s.kind == "final"), None)
    if bend is not None and bend.x is not None:
        text = say("The knee is {}: {} at {}", bend.label, bend.x, bend.y)
    elif final is not None and final.x is not None:
        text = say("The final plan takes {} for a thousand samples at {}; the front has no knee", final.x, final.y)
    else:
        text = say("No knee: too few settings lie on the front")
    if failed:
        shown = Number(units.count(len(failed)), len(failed), ("/trials",), "count_failed_with_memory")
        text = text + say(
            "; {} failed" + (" trial stands" if len(failed) == 1 else " trials stand") + " at the edge", shown
        )
    return text


def _cost_quality(result: Result) -> Tradeoff | None:
    """Cost (or time) to target against the metric, where both were measured."""
    metric = str(name(result.objective.metric or "metric", 40))
    spots = []
    for kind, path, c in _contenders(result):
        if c.metric is None:
            continue
        y = number(c.metric, units.plain, f"{path}/metric")
        if result.objective.price_per_hour is not None and c.cost_to_target is not None:
            x = number(c.cost_to_target, units.money, f"{path}/cost_to_target")
        elif c.time_to_target_seconds is not None:
            x = number(c.time_to_target_seconds.value, units.duration, f"{path}/time_to_target_seconds/value")
        else:
            continue
        spots.append(Spot(kind if kind == "baseline" else "final plan", kind, x, y))
    if len(spots) < 2:
        return None
    priced = result.objective.price_per_hour is not None and result.baseline.cost_to_target is not None
    a, b = spots
    assert a.x is not None
    assert b.x is not None
    text = say(
        "{} from {} to {}, {} from {} to {}",
        "Cost to target" if priced else "Time to target",
        a.x,
        b.x,
        name(metric, 40),
        a.y,
        b.y,
    )
    return Tradeoff(
        "Cost against quality" if priced else "Time against quality",
        text,
        "cost to target" if priced else "time to target",
        metric,
        tuple(spots),
        (),
    )
