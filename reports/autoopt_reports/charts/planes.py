"""The planes of the report: learning curves, trade-offs, predictions, the roofline, the search."""

from __future__ import annotations

from autoopt_reports.charts.plane import BESIDE, SHAPES, Frame, GuideLine, Mark, Path, Plane, frame, span
from autoopt_reports.view import units
from autoopt_reports.view.learning import Learning, Series
from autoopt_reports.view.scaling import AS_IT_IS, LawView, ModelScalingView, ScalingView, TuningView, drawn
from autoopt_reports.view.search import SearchSection
from autoopt_reports.view.stages import Roofline
from autoopt_reports.view.text import say
from autoopt_reports.view.tradeoff import Spot, Tradeoff
from autoopt_reports.view.trials import Predictions

Unit = tuple[float, str]


def _time(largest: float) -> Unit:
    size, word = units.time_unit(largest or 1.0)
    return size, f" {word}"


def curves_chart(view: Learning, series: tuple[Series, ...], axis: str) -> Plane:
    """The metric against seconds or steps: a line for each seed, a band over the seeds, the target."""
    points = [p for s in series for seed in s.seeds for p in seed]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    target = [view.target.value] if view.target is not None and view.target.value is not None else []
    f = frame((0.0, max(xs) or 1.0), span([*ys, *target]))
    paths: list[Path] = []
    for place, s in enumerate(series):
        kind = ("before", "after")[place if s.who != "final plan" else 1]
        paths += [f.area(s.band, kind)] if s.band else []
        paths += [f.path(seed, kind) for seed in s.seeds]
    rules = tuple(f.rule(value, "target", say("target {}", view.target)) for value in target if view.target)
    label, unit = ("wall-clock", _time(max(xs))) if axis == "seconds" else ("training steps", (1.0, ""))
    return f.plane(label, view.metric, paths, rules=rules, x_unit=unit)


def difference_chart(view: Learning) -> Plane | None:
    """Final plan less baseline, with the tolerance drawn on both sides of zero."""
    if view.difference is None:
        return None
    points, margin = view.difference.points, view.difference.margin
    bounds = [0.0] if margin is None or margin.value is None else [-margin.value, 0.0, margin.value]
    f = frame((0.0, max(x for x, _ in points) or 1.0), span([*(y for _, y in points), *bounds]), 150)
    rules = [f.rule(0.0, "zero")]
    if margin is not None and margin.value is not None:
        for sign, value in (("+", margin.value), ("−", -margin.value)):
            rules.append(f.rule(value, "tolerance", say("tolerance " + sign + "{}", margin)))
    return f.plane("training steps", "difference", [f.path(points, "after")], rules=rules)


def scaling_chart(view: ScalingView) -> Plane:
    """Throughput over one process against processes, with the line of perfect scaling."""
    points = [(row.processes.value or 1.0, row.throughput) for row in view.rows]
    reported = [(row.processes.value or 1.0, row.throughput.value.value or 1.0) for row in view.forecast]
    most = max([x for x, _ in (*points, *reported)], default=2.0)
    highs = [one.high.value or 1.0 for _, one in points]
    f = frame((1.0, most), (0.0, max([most, *highs])), 220, left=BESIDE)
    values = [(x, one.value.value or 1.0) for x, one in points]
    band = [(1.0, 1.0, 1.0), *((x, one.low.value or 1.0, one.high.value or 1.0) for x, one in points)]
    paths = (
        f.path([(1.0, 1.0), (most, most)], "before"),
        f.area(band, "after"),
        f.path([(1.0, 1.0), *values], "after"),
        *([f.path([(1.0, 1.0), *reported], "front")] if reported else []),
    )
    marks = tuple(
        f.mark(x, y, kind, say("{} processes: {}", row.processes, row.throughput.phrase), shape=shape)
        for spots, rows, kind, shape in (
            (reported, view.forecast, "rejected", ""),
            (values, view.rows, "final", "circle"),
        )
        for (x, y), row in zip(spots, rows, strict=True)
    )
    return f.plane("processes", "throughput over one", paths, marks)


def tradeoff_chart(view: Tradeoff) -> Plane:
    spots = [s for s in view.spots if s.x is not None]
    memory = view.y_label == "peak memory"
    ys = [s.y.value or 0.0 for s in (*spots, *view.failed)]
    xs = [s.x.value or 0.0 for s in spots if s.x]
    limit = view.limit.value.value if view.limit is not None else None
    furthest = view.x_limit.value if view.x_limit is not None else None
    wide = ys if limit is None else [*ys, limit]
    f = frame(
        span(xs if furthest is None else [*xs, furthest]), span([0.0, *wide] if memory else wide), 260, left=BESIDE
    )
    quiet = [s for s in spots if s.kind not in SHAPES and not s.front]
    marks = [_spot_mark(f, s) for s in spots if s not in quiet]
    marks += [
        Mark(100 - 0.8, f.y.at(s.y.value or 0.0), "failed", "cross", say("{}: failed at {}", s.label, s.y))
        for s in view.failed
    ]
    front = [(s.x.value or 0.0, s.y.value or 0.0) for s in spots if s.front and s.x]
    paths = (f.steps(sorted(front), "front"),) if len(front) > 1 else ()
    rules, low, high, right = list[GuideLine](), f.y.low, f.y.high, f.x.high  # the region that is shaded
    if view.limit is not None and limit is not None:
        low, high = (low, limit) if view.limit.below else (limit, high)
        rules.append(f.rule(limit, "target", say(view.limit.word + " {}", view.limit.value)))
    if furthest is not None:
        right, at = furthest, f.x.at(furthest)
        rules.append(GuideLine(at, f.y.end, at, f.height, "target"))
    if rules:
        paths = (f.area([(f.x.low, low, high), (right, low, high)], "after"), *paths)
    dots = (f.dots(((s.x.value or 0.0, s.y.value or 0.0) for s in quiet if s.x), "rejected"),) if quiet else ()
    x_unit = (1.0, "") if view.x_label == "cost to target" else _time(max(xs))
    y_unit = (1024.0**3, " GiB") if memory else (1.0, "")
    return f.plane(view.x_label, view.y_label, paths, marks, rules, dots, x_unit, y_unit)


def _spot_mark(f: Frame, spot: Spot) -> Mark:
    assert spot.x is not None
    word = spot.kind if spot.kind in {"baseline", "final"} else ""
    word = f"{word} · knee".strip(" ·") if spot.knee else word
    return f.mark(
        spot.x.value or 0.0, spot.y.value or 0.0, spot.kind, say("{}: {}, {}", spot.label, spot.x, spot.y), word
    )


def predictions_chart(view: Predictions) -> Plane:
    """Realized against predicted, both logarithmic; on the diagonal a prediction came true."""
    pairs = [(row.predicted.value.value or 1.0, row.realized.value.value or 1.0) for row in view.rows]
    low, high = span([1.0, *(v for pair in pairs for v in pair)], log=True)
    f = frame((low, high), (low, high), 260, left=BESIDE, log_x=True, log_y=True)
    marks, quiet = [], []
    for row, pair in zip(view.rows, pairs, strict=True):
        if row.verdict != "kept" and len(view.rows) > 200:
            quiet.append(pair)
            continue
        tip = say("{}: predicted {}, measured {}", row.label, row.predicted.value, row.realized.value)
        marks.append(f.mark(*pair, "kept" if row.verdict == "kept" else "rejected", tip))
    dots = (f.dots(quiet, "rejected"),) if quiet else ()
    diagonal, unit = f.path([(low, low), (high, high)], "diagonal"), (1.0, "×")
    return f.plane("predicted speedup", "measured speedup", [diagonal], marks, (), dots, unit, unit)


def roofline_chart(view: Roofline) -> Plane:
    """FLOP/s over FLOPs per byte; the bandwidth is the slope, each matmul peak a flat roof."""
    roofs = [(label, peak, peak.value) for label, peak in view.roofs if peak.value]
    slope = view.bandwidth.value
    xs = [p.intensity.value or 1.0 for p in view.points] + [flops / slope for _, _, flops in roofs if slope]
    x_low, x_high = span([1.0, *xs], log=True, pad=0.12)
    ys = (
        [p.speed.value or 1.0 for p in view.points]
        + [flops for _, _, flops in roofs]
        + [speed.value or 1.0 for _, speed in view.steps]
    )
    y_low, y_high = span([*ys, *([slope * x_low] if slope else [])], log=True, pad=0.06)
    f = frame((x_low, x_high), (y_low, y_high), 300, log_x=True, log_y=True)
    paths, rules, tip = [], [], "{}, {}: {} at {}"
    if slope:
        top = max([flops for _, _, flops in roofs], default=y_high)
        paths.append(f.path([(x_low, slope * x_low), (top / slope, top)], "roof"))
    for label, peak, flops in roofs:
        start = f.x.at(flops / slope) if slope else 0.0
        rules.append(f.rule(flops, "roof", say("{} {}", label, peak), x1=start))
    for when, speed in view.steps:
        rules.append(f.rule(speed.value or y_low, when, say("step " + when + " {}", speed), "start"))
    marks = tuple(
        f.mark(
            p.intensity.value or x_low, p.speed.value or y_low, p.when, say(tip, p.label, p.when, p.speed, p.intensity)
        )
        for p in view.points
    )
    return f.plane("FLOPs per byte", "FLOP/s", paths, marks, rules)


def search_chart(view: SearchSection) -> Plane | None:
    """The best so far, as the product of the kept ratios, over the run's clock; each trial a mark at its end."""
    tip = "{} after {}, best so far {}"
    timed = [(m, m.at.value, m.best.value) for m in view.marks if m.at.value is not None and m.best.value is not None]
    if not timed:
        return None
    end = max(view.end.value or 0.0, *(at for _, at, _ in timed))
    f = frame((0.0, end), span([1.0, *(best for _, _, best in timed)], pad=0.1), 200)
    line: list[tuple[float, float]] = [(0.0, 1.0), *((at, best) for mark, at, best in timed if mark.verdict == "kept")]
    line.append((end, timed[-1][2]))
    failed, marks = (
        [
            f.mark(at, best, verdict, say(tip, mark.label, mark.at, mark.best))
            for mark, at, best in timed
            if mark.verdict == verdict
        ]
        for verdict in ("failed", "kept")
    )
    other = [(at, best) for mark, at, best in timed if mark.verdict not in {"kept", "failed"}]
    dots = [f.dots(other, "rejected")] if other else []
    if len(failed) > 200:
        dots.append(f.dots([(at, best) for mark, at, best in timed if mark.verdict == "failed"], "failed"))
        failed = []
    labels, paths = ("time since the start", "speedup kept so far"), [f.steps(line, "after")]
    return f.plane(*labels, paths, (*failed, *marks), (), dots, _time(end), (1.0, "×"))


def tuning_chart(view: TuningView) -> Plane | None:
    """The best metric of each training, in the order in which they were made, with the target."""
    seen = [(row, row.metric.value) for row in view.rows if row.metric.value is not None]
    if not seen:
        return None
    target = [view.target.value] if view.target.value is not None else []
    f = frame((0.0, max(row.number for row, _ in seen) + 1.0), span([*(y for _, y in seen), *target]), 200)
    kinds, tip = (
        {"final": "final", "baseline": "baseline", "reached": "kept", "failed": "failed"},
        ": {}, target after {}",
    )
    marks = tuple(
        f.mark(row.number, y, kinds.get(row.kind, "rejected"), say(row.state + tip, row.metric, row.seconds))
        for row, y in seen
    )
    rules = tuple(f.rule(y, "target", say("target {}", view.target)) for y in target)
    return f.plane("trial", f"best {view.metric}", (), marks, rules)


def law_chart(view: ModelScalingView, law: LawView) -> Plane | None:
    """Every training as a mark, the fitted line with the bounds of its mean, and the target."""
    spots = drawn(view, law.of)
    if not spots:
        return None
    values = [y for _, _, y in spots] + [y for _, y, _, _ in law.line]
    target = [law.target] if law.target is not None else []
    low, high = span([*values, *target], log=True, pad=0.1)
    xs = span([x for _, x, _ in spots], log=True)
    f = frame(xs, (low, high), 220, left=BESIDE, log_x=True, log_y=True)
    band = f.area([(x, max(least, low), min(most, high)) for x, _, least, most in law.line], "after")
    paths = (band, f.path([(x, y) for x, y, _, _ in law.line], "after")) if law.line else ()
    marks = tuple(
        f.mark(
            x,
            y,
            "baseline" if row.size.text == AS_IT_IS else "kept",
            say("{}: {} parameters, {}", row.size, row.parameters, row.seconds if law.of == "seconds" else row.metric),
        )
        for row, x, y in spots
    )
    rules = tuple(f.rule(y, "target", "target") for y in target)
    size, word = units.time_unit(max(values)) if law.of == "seconds" else (1.0, "")
    error = str(view.metric) if view.mode == "min" else f"one less {view.metric}"
    label = "time to target" if law.of == "seconds" else f"error ({error})"
    return f.plane("trained parameters", label, paths, marks, rules, y_unit=(size, f" {word}" if word else ""))
