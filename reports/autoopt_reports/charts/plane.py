"""Charts in a plane: lines with bands, scatter, roofline, the search over time.

Paths live in a stretched box of 1000 units by the plot's height in pixels; marks and text stand
next to it in percent and pixels, so that only the lines stretch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autoopt_reports.charts.scale import Scale, linear_ticks, log_ticks, tick_text
from autoopt_reports.view.text import Phrase

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


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with a tip. ``shape``: circle, square, diamond, cross or ring."""

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

    def steps(self, points: Sequence[tuple[float, float]], kind: str) -> Path:
        """A staircase: each value holds until the next."""
        pieces = [f"M{self.x.at(points[0][0]) * 10:.0f} {self.y.at(points[0][1]):.1f}"]
        pieces += [f"H{self.x.at(x) * 10:.0f}V{self.y.at(y):.1f}" for x, y in points[1:]]
        return Path("".join(pieces), kind)

    def area(self, band: Sequence[tuple[float, float, float]], kind: str) -> Path:
        edge = [(x, high) for x, _, high in band] + [(x, low) for x, low, _ in reversed(band)]
        return Path(self.path(edge, kind).d + "Z", kind, fill=True)

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


def axes(
    f: Frame, x_unit: tuple[float, str] = (1.0, ""), y_unit: tuple[float, str] = (1.0, "")
) -> tuple[tuple[Tick, ...], tuple[Tick, ...]]:
    """Ticks of both axes, in a unit: (its size, the word after the number)."""
    ticks = []
    for scale, (size, word), wanted in ((f.x, x_unit, 4), (f.y, y_unit, 4)):
        low, high = scale.low / size, scale.high / size
        values = log_ticks(low, high) if scale.log else linear_ticks(low, high, wanted)
        ticks.append([(scale.at(v * size), f"{tick_text(v)}{word}") for v in values])
    xs = tuple(Tick(at, text, "start" if at < 8 else "end" if at > 92 else "middle") for at, text in ticks[0])
    return xs, tuple(Tick(at, text) for at, text in ticks[1] if at > 30.0)  # above stands the axis's name
