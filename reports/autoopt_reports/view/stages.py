"""Where the time went: each stage before and after with its ceiling, what waits, the pipeline graph, the roofline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoopt.records import Configuration, Operator, Peaks, Resource, Round, Snippets, Stage, WholeRun
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, Placed, name, number, numbers, place_name, say

COMPUTE = Resource.DEVICE
ROOFS = tuple(
    (f"matmul {kind}", f"matmul_{kind.lower()}_flops_per_second") for kind in ("fp32", "TF32", "bf16", "fp16")
)
"""Label and field of the peaks that products are held against."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the segmented bar. ``colour``: the stage's place in the legend."""

    label: Name | str
    colour: int
    seconds: Number
    share: Number


@dataclass(frozen=True, slots=True)
class StepBar:
    label: str
    total: Number
    segments: tuple[Segment, ...]


class StageRow:
    """A stage alone, with its ceiling. ``at``: its pointer; ``colour``: its place in the legend."""

    def __init__(self, stage: Stage, at: str, colour: int) -> None:
        seconds, how = (stage.seconds, "") if stage.measured else (None, "unmeasured")
        self.label = name(stage.name, 60)
        self.resource, self.colour, self.measured = stage.resource.value, colour, stage.measured
        self.seconds = number(seconds, units.duration, f"{at}/seconds", how=how)
        self.exposed, self.ceiling = numbers(stage, at, units.duration, "exposed_seconds", "ceiling_seconds")
        self.gap, self.parallel = numbers(stage, at, gap=units.ratio, parallel=units.count)
        self.note = name(stage.note, 160) if stage.note else None


class RunView:
    """The planned run, process start to end, by its parts. ``missing``: those that were not measured.

    ``rows``: of each part its name, all its seconds, their share, its count, and the seconds of one occurrence.
    """

    def __init__(self, whole: WholeRun, at: str) -> None:
        self.headline = say(
            "The planned run of {} steps takes {} from start to end, by its measured parts",
            *numbers(whole, at, steps=units.count, seconds=units.duration),
        )
        forms = {"seconds": units.duration, "share": units.percent, "count": units.count, "each": units.duration}
        self.rows: tuple[tuple[Any, ...], ...] = tuple(
            (name(part.name, 40), *numbers(part, f"{at}/parts/{place}", **forms))
            for place, part in enumerate(whole.parts)
        )
        self.missing = name(f"not measured: {', '.join(whole.missing)}", 160) if whole.missing else None


REST = "not attributed"


class StagesView:
    """Where the time of the first round and of the last one went."""

    def __init__(self, rounds: Sequence[Placed]) -> None:
        (first, before), (path, after), moved = rounds[0], rounds[-1], len(rounds) > 1
        # A colour for each stage: first those that stand in the bars, so that these differ while there are enough.
        stages = [stage for round_ in (before, after) for stage in round_.stages]
        ordered = dict.fromkeys(stage.name for stage in [*(s for s in stages if s.exposed_seconds), *stages])
        colours = {stage: place for place, stage in enumerate(ordered)}
        whens = ("profile before", "profile after") if moved else ("profile",)
        bars = (_bar(*placed, when, colours) for placed, when in zip((rounds[0], rounds[-1]), whens, strict=False))
        self.bars = tuple(bar for bar in bars if bar.segments)
        shown = {str(segment.label) for bar in self.bars for segment in bar.segments}
        self.legend: list[tuple[Name | str, str]] = [
            (name(stage, 30), str(place % 8)) for stage, place in colours.items() if name(stage, 30).text in shown
        ]
        if any(segment.label == REST for bar in self.bars for segment in bar.segments):
            self.legend.append((REST, "rest"))
        self.headline = _headline(after, path, moved=moved)
        self.rows_before = _rows(before, first, colours)
        self.rows_after = _rows(after, path, colours) if moved else ()
        self.idle = _idle(after, path)
        self.run = RunView(after.whole_run, f"{path}/whole_run") if after.whole_run is not None else None


def _bar(path: str, round_: Round, when: str, colours: dict[str, int]) -> StepBar:
    step, whole, paths = round_.step_seconds, f"{path}/step_seconds", list[str]()

    def share(seconds: float, how: str, *sources: str) -> Number:
        return number(seconds / step, units.percent, *sources, how=how)

    segments, rest = [], step
    for index, stage in enumerate(round_.stages):
        exposed, at = stage.exposed_seconds or 0.0, f"{path}/stages/{index}/exposed_seconds"
        if exposed > 0:
            rest -= exposed
            paths.append(at)
            seconds = number(exposed, units.duration, at)
            segments.append(
                Segment(name(stage.name, 30), colours[stage.name], seconds, share(exposed, "quotient", at, whole))
            )
    if segments and rest > 0.005 * step:
        seconds = number(rest, units.duration, whole, *paths, how="less_all")
        segments.append(Segment(REST, len(colours), seconds, share(rest, "share_less_all", whole, *paths)))
    return StepBar(when, number(step, units.duration, whole), tuple(segments))


def _rows(round_: Round, path: str, colours: dict[str, int]) -> tuple[StageRow, ...]:
    each = ((f"{path}/stages/{index}", stage) for index, stage in enumerate(round_.stages))
    return tuple(StageRow(stage, at, colours.get(stage.name, 0)) for at, stage in each)


def _headline(round_: Round, path: str, *, moved: bool) -> Phrase:
    index = next((i for i, stage in enumerate(round_.stages) if stage.name == round_.bottleneck), None)
    step = number(round_.step_seconds, units.duration, f"{path}/step_seconds")
    if index is None:
        return say("In the profile a step takes {}; no single stage holds it back", step)
    stage = round_.stages[index]
    text = say("Now the bottleneck is {}" if moved else "The bottleneck is {}", name(stage.name, 60))
    if stage.exposed_seconds is not None:
        text = text + say(
            ": {} of a step of {} in the profile",
            number(stage.exposed_seconds, units.duration, f"{path}/stages/{index}/exposed_seconds"),
            step,
        )
    if stage.gap is not None:
        text = text + say(
            "; alone it takes {} its ceiling", number(stage.gap, units.ratio, f"{path}/stages/{index}/gap")
        )
    return text


def _idle(round_: Round, path: str) -> Phrase:
    """Wait of the compute stages: the exposed time of everything that is not compute."""
    waits = [
        (stage.exposed_seconds, f"{path}/stages/{index}/exposed_seconds", stage.name)
        for index, stage in enumerate(round_.stages)
        if stage.resource is not COMPUTE and stage.exposed_seconds
    ]
    if not waits or not any(stage.resource is COMPUTE for stage in round_.stages):
        return Phrase()
    share, paths = sum(seconds for seconds, _, _ in waits) / round_.step_seconds, [at for _, at, _ in waits]
    seconds, at, cause = max(waits)
    return say(
        "Compute stands idle for {} of the step; the largest cause is {} ({}).",
        number(share, units.percent, f"{path}/step_seconds", *paths, how="share_all"),
        name(cause, 60),
        number(seconds, units.duration, at),
    )


Labelled = tuple[str, Number]
Timed = Sequence[tuple[str, str, Configuration]]
"""When, pointer and configuration of what was timed."""


class Point:
    """An operator whose work was counted. ``of_roof``: its ceiling over its time, where both were measured."""

    def __init__(self, operator: Operator, flops: float, moved: float, when: str, path: str) -> None:
        seconds, ceiling, took = operator.seconds, operator.ceiling_seconds, f"{path}/seconds"
        self.label, self.when = name(operator.name, 60), when
        self.intensity = number(flops / moved, units.intensity, f"{path}/flops", f"{path}/bytes", how="quotient")
        self.speed = number(flops / seconds, units.flops, f"{path}/flops", took, how="quotient")
        self.seconds = number(seconds, units.duration, took)
        self.of_roof = None
        if ceiling is not None:
            of = ceiling / seconds
            self.of_roof = number(of, units.percent, f"{path}/ceiling_seconds", took, how="quotient")


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
        self.headline = say("The peaks measured on this machine; the step's operations were not counted")
        if self.steps and self.roofs:
            best, peak = max(self.roofs, key=lambda roof: roof[1].value or 0.0)
            speed, now = self.steps[-1][1], "now " if len(self.steps) > 1 else ""
            share = (speed.value or 0.0) / (peak.value or 1.0)
            reached = number(share, units.percent, *speed.paths, *peak.paths, how="quotient")
            words = "The step " + now + "runs at {}: {} of the fastest roof measured here ({})"
            self.headline = say(words, speed, reached, best)
        elif points:
            self.headline = say("The hottest operators against the peaks measured on this machine")


def roofline_view(peaks: Peaks, rounds: Sequence[Placed], configurations: Timed) -> Roofline | None:
    """None where neither a roof nor an operator was measured."""
    found = Roofline(peaks, rounds, configurations)
    return found if found.roofs or found.points or found.steps else None


@dataclass(frozen=True, slots=True)
class Node:
    label: Name
    lane: int
    column: int
    seconds: Number
    critical: bool
    bottleneck: bool
    pins: tuple[Name, ...]


class Lanes:
    """One round as a graph.

    Args:
        fresh: strategies of its plan that the round before did not have; they are pinned to the stages they act on.

    Attributes:
        edges: places in ``nodes``, with whether both ends are critical.
        deeper: links of the chain below the bottleneck: name, kind, seconds, ceiling, gap, where, note.
    """

    def __init__(self, round_: Round, path: str, fresh: list[str], snippets: tuple[Snippets, ...]) -> None:
        names = [stage.name for stage in round_.stages]
        edges = [(a, b) for a, b in round_.edges if a in names and b in names and a != b]
        columns, critical = columns_of(names, edges), round_.critical_path
        self.lanes = tuple(each.value for each in Resource if any(stage.resource is each for stage in round_.stages))
        taken, nodes = set[tuple[int, int]](), []
        for index, stage in enumerate(round_.stages):
            lane, column = self.lanes.index(stage.resource.value), columns[stage.name]
            while (lane, column) in taken:
                column += 1
            taken.add((lane, column))
            seconds = number(stage.seconds, units.duration, f"{path}/stages/{index}/seconds")
            acting = [each.strategy for each in snippets if each.strategy in fresh and stage.name in each.stages]
            pins = tuple(name(strategy, 24) for strategy in acting)
            worst = stage.name == round_.bottleneck
            nodes.append(Node(name(stage.name, 40), lane, column, seconds, stage.name in critical, worst, pins))
        self.nodes = tuple(nodes)
        self.edges = tuple((names.index(a), names.index(b), a in critical and b in critical) for a, b in edges)
        self.index = number(round_.index, units.count, f"{path}/index")
        self.headline = _held_back_by(round_)
        self.simulated = _simulated(round_, path)
        self.deeper = tuple(
            (
                name(link.name, 120),
                link.kind,
                *numbers(link, f"{path}/deeper/{index}", units.duration, "seconds", "ceiling_seconds", gap=units.ratio),
                place_name(link.file, link.line),
                name(link.note, 200) if link.note else None,
            )
            for index, link in enumerate(round_.deeper)
        )
        self.notes = tuple(name(note) for note in round_.notes)


def lanes_views(rounds: Sequence[Placed], snippets: tuple[Snippets, ...] = ()) -> tuple[Lanes, ...]:
    before: list[Round | None] = [None, *(round_ for _, round_ in rounds)]
    return tuple(
        Lanes(round_, path, [s for s in round_.plan.names() if last is None or s not in last.plan.names()], snippets)
        for (path, round_), last in zip(rounds, before, strict=False)
    )


def columns_of(names: list[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """How many stages must precede each: its longest path from a start. Edges that close a circle are ignored."""
    depth = dict.fromkeys(names, 0)
    for _ in names:
        moved = False
        for start, end in edges:
            if depth[end] < depth[start] + 1 < len(names):
                depth[end], moved = depth[start] + 1, True
        if not moved:
            break
    used = sorted(set(depth.values()))
    return {key: used.index(value) for key, value in depth.items()}


def _held_back_by(round_: Round) -> Phrase:
    if round_.bottleneck is None:
        return say("no single stage holds the step back")
    return with_kind(say("{} is the bottleneck", name(round_.bottleneck, 60)), round_)


def with_kind(text: Phrase, round_: Round) -> Phrase:
    """The bottleneck, with its class where that adds to the name of the stage."""
    kind = round_.bottleneck_class
    return text + say(" ({})", name(kind, 120)) if kind and kind != round_.bottleneck else text


def _simulated(round_: Round, path: str) -> Phrase:
    measured = number(round_.step_seconds, units.duration, f"{path}/step_seconds")
    if round_.predicted_step_seconds is None:
        return say("The step measured {}; the graph's own prediction: not measured.", measured)
    text = say(
        "The graph predicts a step of {}, measured {}",
        number(round_.predicted_step_seconds, units.duration, f"{path}/predicted_step_seconds"),
        measured,
    )
    if round_.simulation_error is not None:
        text = text + say(" (error {})", number(round_.simulation_error, units.percent, f"{path}/simulation_error"))
    return text + "."


def pipeline_headline(rounds: Sequence[Placed]) -> Phrase:
    """How the bottleneck moved from the first round to the last."""
    (_, first), (_, last) = rounds[0], rounds[-1]
    if len(rounds) == 1 or first.bottleneck is None or last.bottleneck is None:
        return _held_back_by(last)
    if first.bottleneck == last.bottleneck:
        return say("{} stays the bottleneck", name(last.bottleneck, 60))
    return say("The bottleneck moved from {} to {}", name(first.bottleneck, 60), name(last.bottleneck, 60))
