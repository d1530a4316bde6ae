"""Charts in a plane: learning curves, trade-offs, predictions, the roofline, the search over time.

Paths live in a stretched box of 1000 units by the plot's height in pixels; marks and text stand
next to it in percent and pixels, so that only the lines stretch.

An axis takes a number to a place and has the ticks that a user would draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoopt_reports.view import units
from autoopt_reports.view.learning import Learning, Series
from autoopt_reports.view.scaling import AS_IT_IS, LawView, ModelScalingView, ScalingView, TuningView, drawn
from autoopt_reports.view.stages import Roofline
from autoopt_reports.view.text import Phrase, say
from autoopt_reports.view.tradeoff import Tradeoff
from autoopt_reports.view.trials import Predictions, SearchSection


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps ``low..high`` to ``start..end``; logarithmic where asked for (then both must be positive)."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value; outside values stand at the nearer end."""
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        if high <= low:
            return round((self.start + self.end) / 2, 2)
        x = math.log(value) if self.log and value > 0 else low if self.log else value
        share = min(1.0, max(0.0, (x - low) / (high - low)))
        return round(self.start + share * (self.end - self.start), 2)


def span(values: Iterable[float], *, log: bool = False, pad: float = 0.04) -> tuple[float, float]:
    """The range that holds all finite values, with some room; never empty."""
    finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not finite:
        return (0.5, 2.0) if log else (0.0, 1.0)
    low, high = min(finite), max(finite)
    if log:
        factor = (high / low) ** pad if high > low else 1.1
        return low / max(factor, 1.0001), high * max(factor, 1.0001)
    room = (high - low) * pad or max(abs(high) * 0.05, 1e-12)
    return low - room, high + room


def linear_ticks(low: float, high: float) -> list[float]:
    """About four round numbers (1, 2 or 5 times a power of ten) inside the range."""
    if not high > low:
        return [low]
    raw = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = min((m * magnitude for m in (1, 2, 5, 10)), key=lambda s: abs(math.log(s / raw)))
    first = math.ceil(low / step - 1e-9)
    ticks: list[float] = []
    while first * step <= high * (1 + 1e-12) + 1e-15 and len(ticks) < 24:
        ticks.append(round(first * step, 12))
        first += 1
    return ticks


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten; where fewer than two fit, 1-2-5 steps, and below a factor of two, linear ones."""
    if high / low < 3:
        return [t for t in linear_ticks(low, high) if t > 0]
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    tens = [10.0**e for e in range(first, last + 1)]
    inside = [t for t in tens if low <= t <= high]
    if len(inside) >= 3:
        every = max(1, math.ceil(len(inside) / 6))
        return inside[::every]
    return [t * m for t in tens for m in (1, 2, 5) if low <= t * m <= high]


def tick_text(value: float) -> str:
    """``1.2``, ``400``, ``10k``, ``2M``."""
    size = abs(value)
    for factor, suffix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= factor:
            return f"{value / (1e3 if suffix == 'k' else factor):g}{suffix}"
    return f"{value:.6g}"


INSET, BESIDE = 3.0, 9.0
"""Per cent of the width that stay free at the edges, and where numbers stand next to the plot."""


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str
    anchor: str = "middle"


@dataclass(frozen=True, slots=True)
class Path:
    """``d`` in box units; ``kind``: its class; ``fill``: an area rather than a line."""

    d: str
    kind: str
    fill: bool = False


SHAPES = {"baseline": "square", "final": "diamond", "kept": "circle", "after": "circle", "failed": "cross"}
"""The shape of a mark by its kind; that of any other kind is a ring."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with a tip."""

    x: float
    y: float
    kind: str
    shape: str
    tip: Phrase
    label: str = ""
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class GuideLine:
    """A straight line with a word on it: a target, a tolerance, a roof."""

    x1: float
    y1: float
    x2: float
    y2: float
    kind: str
    label: Phrase | str = ""
    anchor: str = "end"


@dataclass(frozen=True, slots=True)
class Plane:
    height: int
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_label: str
    y_label: str
    paths: tuple[Path, ...] = ()
    marks: tuple[Mark, ...] = ()
    rules: tuple[GuideLine, ...] = ()
    dots: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Frame:
    """The two axes of a plane."""

    x: Scale
    y: Scale
    height: int

    def path(self, points: Sequence[tuple[float, float]], kind: str) -> Path:
        return Path("M" + "L".join(f"{self.x.at(x) * 10:.0f} {self.y.at(y):.1f}" for x, y in points), kind)

    def mark(self, x: float, y: float, kind: str, tip: Phrase, label: str = "", shape: str = "") -> Mark:
        """A point; its label stands on the side that has room."""
        at = self.x.at(x)
        shape = shape or SHAPES.get(kind, "ring")
        return Mark(at, self.y.at(y), kind, shape, tip, label, "end" if at > 60 else "start")

    def rule(self, value: float, kind: str, label: Phrase | str = "", anchor: str = "end", x1: float = 0) -> GuideLine:
        """A level line at a value of the y axis."""
        return GuideLine(x1, self.y.at(value), 100, self.y.at(value), kind, label, anchor)

    def steps(self, points: Sequence[tuple[float, float]], kind: str) -> Path:
        """A staircase: each value holds until the next."""
        pieces = [f"M{self.x.at(points[0][0]) * 10:.0f} {self.y.at(points[0][1]):.1f}"]
        pieces += [f"H{self.x.at(x) * 10:.0f}V{self.y.at(y):.1f}" for x, y in points[1:]]
        return Path("".join(pieces), kind)

    def area(self, band: Sequence[tuple[float, float, float]], kind: str) -> Path:
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        return Path(self.path(edge, kind).d + "Z", kind, fill=True)

    def plane(
        self,
        x_label: str,
        y_label: str,
        paths: Iterable[Path] = (),
        marks: Iterable[Mark] = (),
        rules: Iterable[GuideLine] = (),
        dots: Iterable[Path] = (),
        x_unit: tuple[float, str] = (1.0, ""),
        y_unit: tuple[float, str] = (1.0, ""),
    ) -> Plane:
        """What is drawn on these axes, whose ticks are in a unit: its size, the word after the number."""
        ticks = []
        for scale, (size, word) in ((self.x, x_unit), (self.y, y_unit)):
            low, high = scale.low / size, scale.high / size
            values = log_ticks(low, high) if scale.log else linear_ticks(low, high)
            ticks.append([(scale.at(v * size), f"{tick_text(v)}{word}") for v in values])
        xs = tuple(Tick(at, text, "start" if at < 8 else "end" if at > 92 else "middle") for at, text in ticks[0])
        ys = tuple(Tick(at, text) for at, text in ticks[1] if at > 30.0)  # above stands the axis's name
        return Plane(self.height, xs, ys, x_label, y_label, tuple(paths), tuple(marks), tuple(rules), tuple(dots))

    def dots(self, points: Iterable[tuple[float, float]], kind: str) -> Path:
        """Many points as one path: a round cap on no length is a dot."""
        return Path("".join(f"M{self.x.at(x) * 10:.0f} {self.y.at(y):.1f}h0" for x, y in points), kind)


def frame(
    x: tuple[float, float],
    y: tuple[float, float],
    height: int = 220,
    *,
    left: float = INSET,
    log_x: bool = False,
    log_y: bool = False,
) -> Frame:
    return Frame(Scale(*x, left, 100 - INSET, log=log_x), Scale(*y, float(height - 8), 14.0, log=log_y), height)


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
    quiet, marks = [s for s in spots if s.kind not in SHAPES and not s.front], list[Mark]()
    for s in spots:
        word = s.kind if s.kind in {"baseline", "final"} else ""
        word = f"{word} · knee".strip(" ·") if s.knee else word
        if s not in quiet and s.x is not None:
            tip = say("{}: {}, {}", s.label, s.x, s.y)
            marks.append(f.mark(s.x.value or 0.0, s.y.value or 0.0, s.kind, tip, word))
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
