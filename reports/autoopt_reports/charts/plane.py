"""Charts in a plane: lines with bands, scatter, roofline, the search over time.

Paths live in a stretched box of 1000 units by the plot's height in pixels; marks and text stand
next to it in percent and pixels, so that only the lines stretch.

An axis takes a number to a place and has the ticks that a user would draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoopt_reports.view.text import Phrase


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
