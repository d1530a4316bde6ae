"""The swimlane graph: fixed pixels, so that names stay readable; a narrow window scrolls it."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt_reports.view.pipeline import Lanes, Node

COLUMN, LANE, BOX, TALL, LEFT = 114, 84, 98, 42, 10


@dataclass(frozen=True, slots=True)
class Box:
    x: int
    y: int
    node: Node


@dataclass(frozen=True, slots=True)
class Link:
    """A curve from the right edge of one box to the left edge of another."""

    d: str
    critical: bool


@dataclass(frozen=True, slots=True)
class LanesChart:
    width: int
    height: int
    lanes: tuple[tuple[int, str], ...]
    boxes: tuple[Box, ...]
    links: tuple[Link, ...]


def lanes_chart(view: Lanes) -> LanesChart:
    boxes = tuple(Box(LEFT + node.column * COLUMN, node.lane * LANE + 22, node) for node in view.nodes)
    width = LEFT + (max((node.column for node in view.nodes), default=0) + 1) * COLUMN
    links = tuple(Link(_curve(boxes[a], boxes[b]), critical) for a, b, critical in view.edges)
    lanes = tuple((place * LANE, lane) for place, lane in enumerate(view.lanes))
    return LanesChart(width, max(1, len(view.lanes)) * LANE, lanes, boxes, links)


def _curve(start: Box, end: Box) -> str:
    x0, y0 = start.x + BOX, start.y + TALL // 2
    x1, y1 = end.x, end.y + TALL // 2
    bend = max(12, abs(x1 - x0) // 2)
    return f"M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1 - 4} {y1}"
