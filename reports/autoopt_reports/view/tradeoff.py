"""Time against memory, and cost against quality: what a faster plan is paid with, and why one was taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from autoopt.records import Configuration, Result, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, change_name, join, name, number, say


@dataclass(frozen=True, slots=True)
class Spot:
    """One arm. ``kind``: "baseline", "final" or a verdict; ``front``: nothing beats it on both axes."""

    label: Name | str
    kind: str
    x: Number | None
    y: Number
    front: bool = False
    knee: bool = False


@dataclass(frozen=True, slots=True)
class Limit:
    """Where the feasible region ends. ``below``: it lies below; ``word``: what the limit is."""

    value: Number
    below: bool
    word: str


@dataclass(frozen=True, slots=True)
class Tradeoff:
    """A plane. ``failed``: at its edge, for want of an x; ``reason``: one sentence, why what was taken was.

    ``x_limit``: the largest x that is feasible.
    """

    title: str
    headline: Phrase
    x_label: str
    y_label: str
    spots: tuple[Spot, ...]
    failed: tuple[Spot, ...]
    limit: Limit | None = None
    reason: Phrase | None = None
    x_limit: Number | None = None


def tradeoff_views(result: Result) -> tuple[Tradeoff, ...]:
    return tuple(filter(None, (_time_memory(result), _cost_quality(result))))


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

    def place(measured: Configuration | Trial, path: str) -> tuple[Number | None, Number]:
        rate = measured.samples_per_second
        seconds = 1000.0 / rate if rate else 0.0
        x = number(seconds, units.duration, f"{path}/samples_per_second", how="per_thousand") if rate else None
        return x, number(measured.peak_memory_bytes, units.bytes_, f"{path}/peak_memory_bytes")

    failed: list[Spot] = []
    spots = [*_own(result, place)]
    for index, trial in enumerate(result.trials):
        x, y = place(trial, f"/trials/{index}")
        if not y.missing and trial.verdict is Verdict.FAILED:
            failed.append(Spot(_label(trial), "failed", None, y))
        elif not y.missing and x is not None:
            spots.append(Spot(_label(trial), trial.verdict.value, x, y))
    if len(spots) < 2:
        return None
    marked, memory, limit = _marked(spots), result.environment.device_memory_bytes, None
    # a limit more than three times as high as all that was measured is not drawn
    if memory is not None and memory <= 3.0 * max(spot.y.value or 0.0 for spot in [*spots, *failed]):
        value = number(memory, units.bytes_, "/environment/device_memory_bytes")
        limit = Limit(value, True, "memory of the device")
    labels = ("seconds per thousand samples", "peak memory")
    return Tradeoff("Time against memory", _headline(marked, failed), *labels, marked, tuple(failed), limit)


def _own(result: Result, place: Callable[[Configuration, str], tuple[Number | None, Number]]) -> Iterator[Spot]:
    """Baseline and final plan where both axes were measured; the baseline alone where nothing was kept."""
    sides = [("baseline", "baseline", result.baseline, "/baseline"), ("final plan", "final", result.best, "/best")]
    for label, kind, measured, path in sides if result.found else sides[:1]:
        x, y = place(measured, path)
        if x is not None and not y.missing:
            yield Spot(label, kind, x, y)


def _label(trial: Trial) -> Name:
    return change_name(trial.strategy, trial.setting, trial.companions, 60)


def _marked(spots: list[Spot], *, largest: bool = False) -> tuple[Spot, ...]:
    """Marks front and knee; ``largest``: y is to be large."""
    sign = -1.0 if largest else 1.0
    points = [(s.x.value or 0.0, sign * (s.y.value or 0.0)) if s.x else (math.inf, math.inf) for s in spots]
    # Only what may be chosen counts: a setting that lost quality is no point of the front.
    free = [i for i, s in enumerate(spots) if s.kind not in {"quality_lost", "failed"}]
    local = pareto([points[i] for i in free])
    front = [free[i] for i in local]
    bend = knee(points, front)
    return tuple(replace(s, front=i in front, knee=i == bend) for i, s in enumerate(spots))


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
        shown = number(len(failed), units.count, "/trials", how="count_failed_with_memory")
        text += say("; {} failed" + (" trial stands" if len(failed) == 1 else " trials stand") + " at the edge", shown)
    return text


def _cost_quality(result: Result) -> Tradeoff | None:
    """Cost (or time) to target against the metric, of all that was trained; what missed the target at the edge."""
    metric = name(result.objective.metric or "metric", 40)
    priced = result.objective.price_per_hour is not None and result.baseline.cost_to_target is not None

    def place(c: Configuration, path: str) -> tuple[Number | None, Number]:
        return _to_target(c, path, priced), number(c.metric, units.plain, f"{path}/metric")

    own = [*_own(result, place)]
    trained, missed = _trained(result, priced)
    spots = own + trained
    if len(spots) < 2:
        return None
    marked = _marked(spots, largest=result.objective.mode == "max")
    what = "Cost to target" if priced else "Time to target"
    target = result.objective.target
    ends = [(spot.x, spot.y) for spot in own if spot.x is not None]
    headline = join([say(what + " {} at {} {}", x, metric, y) for x, y in ends])
    if len(ends) > 1:
        (x0, y0), (x1, y1) = ends
        headline = say("{} from {} to {}, {} from {} to {}", what, x0, x1, metric, y0, y1)
    limit = None
    if target is not None:
        limit = Limit(number(target, units.plain, "/objective/target"), result.objective.mode == "min", "target")
    title = "Cost against quality" if priced else "Time against quality"
    why = _why(result, marked, missed)
    return Tradeoff(title, headline, what.lower(), str(metric), marked, tuple(missed), limit, why)


def _to_target(c: Configuration, path: str, priced: bool) -> Number | None:
    if priced:
        return None if c.cost_to_target is None else number(c.cost_to_target, units.money, f"{path}/cost_to_target")
    seconds = c.time_to_target_seconds
    return None if seconds is None else number(seconds.value, units.duration, f"{path}/time_to_target_seconds/value")


def _trained(result: Result, priced: bool) -> tuple[list[Spot], list[Spot]]:
    """Trials that were trained on the baseline: those with a time to target, and those that missed it."""
    base = _to_target(result.baseline, "/baseline", priced)
    spots, missed = [], []
    for index, trial in enumerate(result.trials):
        metric = trial.quality.candidate if trial.quality is not None else None
        if metric is None or trial.base != "baseline" or base is None or base.value is None:
            continue
        y = number(metric, units.plain, f"/trials/{index}/quality/candidate")
        ratio = trial.time_to_target
        if ratio is not None and ratio.value > 0:
            value, form = base.value / ratio.value, units.money if priced else units.duration
            x = Number(form(value), value, (*base.paths, f"/trials/{index}/time_to_target/value"), "quotient")
            spots.append(Spot(_label(trial), trial.verdict.value, x, y))
        elif trial.verdict is Verdict.QUALITY_LOST:
            missed.append(Spot(_label(trial), "failed", None, y))
    return spots, missed


def _why(result: Result, spots: Sequence[Spot], missed: Sequence[Spot]) -> Phrase:
    """One sentence: what was taken, and what stood against the others."""
    final = next((spot for spot in spots if spot.kind == "final"), None)
    others = [spot for spot in spots if spot.kind not in {"final", "baseline", "kept"}]
    at = final.x.value or 0.0 if final is not None and final.x is not None else 0.0
    sooner = [spot for spot in others if spot.x is not None and (spot.x.value or 0.0) < at]
    if not result.found:
        text = say("Taken: the baseline; nothing was confirmed to reach the target sooner at the same quality")
    elif final is None:
        text = say("Taken: the final plan, whose own training to the target was not measured")
    elif sooner:
        text = say("Taken: the final plan; {} may be sooner, but is not confirmed", sooner[0].label)
    else:
        text = say("Taken: the final plan, which has the target after {}, sooner than all that reach it", final.x or "")
    bend = next((spot for spot in spots if spot.knee), None)
    if bend is not None:
        text = text + say("; the knee is {}", bend.label)
    if missed:
        text = text + say("; {} missed the target", join([Phrase((spot.label,)) for spot in missed], last=" and "))
    return text
