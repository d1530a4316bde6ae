"""The roofline: what this machine reached when it was measured, and how far the operators are from it."""

from __future__ import annotations

from collections.abc import Sequence

from autoopt.records import Configuration, Operator, Peaks
from autoopt_reports.view import units
from autoopt_reports.view.closing import ROOFS
from autoopt_reports.view.text import Number, Phrase, Placed, name, number, say

Labelled = tuple[str, Number]
Timed = Sequence[tuple[str, str, Configuration]]
"""When, pointer and configuration of what was timed."""


class Point:
    """An operator whose work was counted. ``of_roof``: its ceiling over its time, where both were measured."""

    def __init__(self, operator: Operator, flops: float, moved: float, when: str, path: str) -> None:
        seconds, ceiling, took = operator.seconds, operator.ceiling_seconds, f"{path}/seconds"
        self.label, self.when = name(operator.name, 60), when
        self.intensity = _quotient(flops / moved, units.intensity, f"{path}/flops", f"{path}/bytes")
        self.speed = _quotient(flops / seconds, units.flops, f"{path}/flops", took)
        self.seconds = number(seconds, units.duration, took)
        self.of_roof = None
        if ceiling is not None:
            self.of_roof = _quotient(ceiling / seconds, units.percent, f"{path}/ceiling_seconds", took)


def _quotient(value: float, form: units.Formatter, *paths: str) -> Number:
    return Number(form(value), value, paths, "quotient")


class Roofline:
    """Peaks as roofs, operators as points, and the speed of the step before and after."""

    def __init__(self, peaks: Peaks, rounds: Sequence[Placed], configurations: Timed) -> None:
        at = "/environment/peaks"
        self.roofs: tuple[Labelled, ...] = tuple(
            (label, number(getattr(peaks, field), units.flops, f"{at}/{field}"))
            for label, field in ROOFS
            if getattr(peaks, field) is not None
        )
        self.bandwidth = number(peaks.memory_bytes_per_second, units.bandwidth, f"{at}/memory_bytes_per_second")
        points, self.unplaced = list[Point](), 0
        ends = [("before", *placed) for placed in rounds[:1]] + [("after", *placed) for placed in rounds[1:][-1:]]
        for when, path, round_ in ends:
            ranked = sorted(enumerate(round_.operators), key=lambda item: -item[1].seconds)[:8]
            for place, each in ranked:
                if each.flops and each.bytes and each.seconds > 0:
                    points.append(Point(each, each.flops, each.bytes, when, f"{path}/operators/{place}"))
                else:
                    self.unplaced += 1
        self.points = tuple(points)
        self.steps: tuple[Labelled, ...] = tuple(
            (when, number(c.flops_per_second, units.flops, f"{path}/flops_per_second"))
            for when, path, c in configurations
            if c.flops_per_second
        )
        self.headline = _headline(self.roofs, self.steps, self.points)


def roofline_view(peaks: Peaks, rounds: Sequence[Placed], configurations: Timed) -> Roofline | None:
    """None where neither a roof nor an operator was measured."""
    found = Roofline(peaks, rounds, configurations)
    return found if found.roofs or found.points or found.steps else None


def _headline(roofs: tuple[Labelled, ...], steps: tuple[Labelled, ...], points: tuple[Point, ...]) -> Phrase:
    if steps and roofs:
        best, peak = max(roofs, key=lambda roof: roof[1].value or 0.0)
        _, speed = steps[-1]
        share = (speed.value or 0.0) / (peak.value or 1.0)
        reached = _quotient(share, units.percent, *speed.paths, *peak.paths)
        return say(
            "The step " + ("now " if len(steps) > 1 else "") + "runs at {}: {} of the fastest roof measured here ({})",
            speed,
            reached,
            best,
        )
    if points:
        return say("The hottest operators against the peaks measured on this machine")
    return say("The peaks measured on this machine; the step's operations were not counted")
