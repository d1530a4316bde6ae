"""Charts of rows: waterfall, forest, segmented bars, bars with a ceiling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoopt_reports.charts.planes import Scale, log_ticks, span, tick_text
from autoopt_reports.view.stages import REST, Lanes, Node, StageRow, StagesView
from autoopt_reports.view.steps import Forest, Waterfall
from autoopt_reports.view.text import Name, Number

ROW, STACK, FOREST_ROW = 42, 52, 58
"""Pixels of a row with one bar, with one of pieces, and with two intervals."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled bar. ``tick``: where a ceiling is marked; ``join``: x of the line down to the next bar."""

    label: Name | str
    shown: Number | None
    x: float
    width: float
    kind: str
    tick: float | None = None
    join: float | None = None


def waterfall_chart(view: Waterfall) -> list[Bar]:
    scale = Scale(0.0, max(max(bar.start, bar.end) for bar in view.bars), 0.0, 100.0)
    bars = []
    for place, bar in enumerate(view.bars):
        left, right = sorted((scale.at(bar.start), scale.at(bar.end)))
        join = scale.at(bar.end) if place < len(view.bars) - 1 else None
        bars.append(Bar(bar.label, bar.shown, left, max(0.3, round(right - left, 2)), f"w-{bar.kind}", join=join))
    return bars


def ceiling_chart(rows: Iterable[StageRow]) -> list[Bar]:
    """Each stage alone, its ceiling a tick. Stages without a measurement have no bar."""
    rows = list(rows)
    scale = Scale(0.0, max((row.seconds.value or 0.0 for row in rows), default=1.0) or 1.0)
    bars = []
    for row in rows:
        width = scale.at(row.seconds.value or 0.0)
        tick = scale.at(row.ceiling.value) if row.ceiling.value is not None else None
        bars.append(Bar(row.label, row.seconds, 0.0, max(width, 0.3) if width else 0.0, f"s{row.colour % 8}", tick))
    return bars


def importance_chart(shares: Iterable[tuple[Name, Number]]) -> list[Bar]:
    """A bar for each parameter, by its share of the whole."""
    return [Bar(label, share, 0.0, max(0.3, round(100 * (share.value or 0.0), 2)), "s0") for label, share in shares]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage's part of a bar. ``fits``: its label has room where the page is wide; ``always``: on a phone as well."""

    x: float
    width: float
    colour: str
    shown: Number
    label: Name | str
    fits: bool
    always: bool


Stack = tuple[str, Number, tuple[Piece, ...]]
"""A bar of pieces: label, what is shown of it."""


def stack_chart(view: StagesView) -> list[Stack]:
    totals = [max(bar.total.value or 0.0, sum(s.seconds.value or 0.0 for s in bar.segments)) for bar in view.bars]
    longest = max(totals, default=1.0) or 1.0
    stacks: list[Stack] = []
    for bar in view.bars:
        x, pieces = 0.0, []
        for segment in bar.segments:
            width = (segment.seconds.value or 0.0) / longest * 100
            colour = "rest" if segment.label == REST else str(segment.colour % 8)
            room = 1.5 + 0.78 * len(f"{segment.label} {segment.share}")  # at the page's full width
            fits, always = width >= room, width >= 2.6 * room
            pieces.append(Piece(round(x, 2), round(width, 2), colour, segment.share, segment.label, fits, always))
            x += width
        stacks.append((bar.label, bar.total, tuple(pieces)))
    return stacks


Whisker = tuple[int, float, float, float, bool]
"""An interval on the axis: y, low, value, high. Filled: left out of the plan; hollow: alone."""


@dataclass(frozen=True, slots=True)
class ForestChart:
    """``lines``: y, label, what is shown of it, its intervals."""

    height: int
    lines: tuple[tuple[int, Name, Number | None, tuple[Whisker, ...]], ...]
    band: tuple[float, float] | None
    one: float
    ticks: tuple[tuple[float, str], ...]


def forest_chart(view: Forest) -> ForestChart:
    """Speedups on a log axis; 1 is always on it."""
    values = [1.0, *(view.band or ())]
    for row in view.rows:
        for estimate in (row.without, row.alone):
            values += [estimate.low.value or 1.0, estimate.high.value or 1.0] if estimate else []
    low, high = span(values, log=True)
    scale = Scale(low, high, 2.0, 98.0, log=True)
    lines = []
    for place, row in enumerate(view.rows):
        y = place * FOREST_ROW
        whiskers: list[Whisker] = []
        for offset, filled, estimate in ((28, True, row.without), (44, False, row.alone)):
            if estimate is not None:
                left, middle, right = (
                    scale.at(bound.value or low) for bound in (estimate.low, estimate.value, estimate.high)
                )
                whiskers.append((y + offset, left, middle, right, filled))
        lines.append((y, row.label, row.without.value if row.without else None, tuple(whiskers)))
    ticks = tuple((scale.at(t), tick_text(t) + "×") for t in log_ticks(low, high))
    band = (scale.at(view.band[0]), scale.at(view.band[1])) if view.band else None
    return ForestChart(len(lines) * FOREST_ROW, tuple(lines), band, scale.at(1.0), ticks)


COLUMN, LANE, BOX, TALL, LEFT = 114, 84, 98, 42, 10
"""Pixels of the graph: from a box to the next, from a lane to the next, a box's width and height, the margin."""


@dataclass(frozen=True, slots=True)
class LanesChart:
    """Boxes by their upper left corner; links as curves from the right edge of one to the left edge of another."""

    width: int
    height: int
    lanes: tuple[tuple[int, str], ...]
    boxes: tuple[tuple[int, int, Node], ...]
    links: tuple[tuple[str, bool], ...]


def lanes_chart(view: Lanes) -> LanesChart:
    boxes = tuple((LEFT + node.column * COLUMN, node.lane * LANE + 22, node) for node in view.nodes)
    width = LEFT + (max((node.column for node in view.nodes), default=0) + 1) * COLUMN
    links = []
    for a, b, critical in view.edges:
        x0, y0, x1, y1 = boxes[a][0] + BOX, boxes[a][1] + TALL // 2, boxes[b][0], boxes[b][1] + TALL // 2
        bend = max(12, abs(x1 - x0) // 2)
        links.append((f"M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1 - 4} {y1}", critical))
    lanes = tuple((place * LANE, lane) for place, lane in enumerate(view.lanes))
    return LanesChart(width, max(1, len(view.lanes)) * LANE, lanes, boxes, tuple(links))
