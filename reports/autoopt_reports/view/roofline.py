"""The roofline: what this machine reached when it was measured, and how far the operators are from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoopt.records import Configuration, Operator, Peaks, Round
from autoopt_reports.view import units
from autoopt_reports.view.closing import ROOFS
from autoopt_reports.view.text import Name, Number, Phrase, name, number, say

Labelled = tuple[str, Number]
Timed = Sequence[tuple[str, str, Configuration]]
"""When, pointer and configuration of what was timed."""


@dataclass(frozen=True, slots=True)
class Point:
    """An operator. ``of_roof``: its ceiling over its time, where both were measured."""

    label: Name
    when: str
    intensity: Number
    speed: Number
    seconds: Number
    of_roof: Number | None


class Roofline:
    """Peaks as roofs, operators as points, and the speed of the step before and after.

    Args:
        base: pointer of the rounds.
    """

    def __init__(
        self,
        peaks: Peaks,
        rounds: tuple[Round, ...],
        configurations: Timed,
        base: str,
    ) -> None:
        at, last = "/environment/peaks", len(rounds) - 1
        self.roofs: tuple[Labelled, ...] = tuple(
            (label, number(getattr(peaks, field), units.flops, f"{at}/{field}"))
            for label, field in ROOFS
            if getattr(peaks, field) is not None
        )
        self.bandwidth = number(peaks.memory_bytes_per_second, units.bandwidth, f"{at}/memory_bytes_per_second")
        found: list[Point | None] = []
        for index, when in {0: "before", last: "after" if last else "before"}.items() if rounds else ():
            path = f"{base}/{index}" if base.endswith("rounds") else base
            ranked = sorted(enumerate(rounds[index].operators), key=lambda item: -item[1].seconds)[:8]
            found += [_point(operator, when, f"{path}/operators/{place}") for place, operator in ranked]
        self.points = tuple(point for point in found if point is not None)
        self.unplaced = len(found) - len(self.points)
        self.steps: tuple[Labelled, ...] = tuple(
            (when, number(c.flops_per_second, units.flops, f"{path}/flops_per_second"))
            for when, path, c in configurations
            if c.flops_per_second
        )
        self.headline = _headline(self.roofs, self.steps, self.points)


def roofline_view(peaks: Peaks, rounds: tuple[Round, ...], configurations: Timed, base: str) -> Roofline | None:
    """None where neither a roof nor an operator was measured."""
    found = Roofline(peaks, rounds, configurations, base)
    return found if found.roofs or found.points or found.steps else None


def _point(operator: Operator, when: str, path: str) -> Point | None:
    if not operator.flops or not operator.bytes or operator.seconds <= 0:
        return None
    intensity, speed = operator.flops / operator.bytes, operator.flops / operator.seconds
    of_roof = None
    if operator.ceiling_seconds is not None:
        share = operator.ceiling_seconds / operator.seconds
        of_roof = Number(units.percent(share), share, (f"{path}/ceiling_seconds", f"{path}/seconds"), "quotient")
    return Point(
        name(operator.name, 60),
        when,
        Number(units.intensity(intensity), intensity, (f"{path}/flops", f"{path}/bytes"), "quotient"),
        Number(units.flops(speed), speed, (f"{path}/flops", f"{path}/seconds"), "quotient"),
        number(operator.seconds, units.duration, f"{path}/seconds"),
        of_roof,
    )


def _headline(roofs: tuple[Labelled, ...], steps: tuple[Labelled, ...], points: tuple[Point, ...]) -> Phrase:
    if steps and roofs:
        best, peak = max(roofs, key=lambda roof: roof[1].value or 0.0)
        _, speed = steps[-1]
        share = (speed.value or 0.0) / (peak.value or 1.0)
        reached = Number(units.percent(share), share, (*speed.paths, *peak.paths), "quotient")
        return say(
            "The step " + ("now " if len(steps) > 1 else "") + "runs at {}: {} of the fastest roof measured here ({})",
            speed,
            reached,
            best,
        )
    if points:
        return say("The hottest operators against the peaks measured on this machine")
    return say("The peaks measured on this machine; the step's operations were not counted")
