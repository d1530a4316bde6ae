"""The pipeline graph: stages in the lanes of what they occupy, in the order in which they must run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoopt.records import Resource, Round, Snippets
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, Placed, name, number, say

Link = tuple[Name, str, Number, Number, Number, Name | None, Name | None]


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
        self.headline = _headline(round_)
        self.simulated = _simulated(round_, path)
        self.deeper = _deeper(round_, path)
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


def _headline(round_: Round) -> Phrase:
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


def _deeper(round_: Round, path: str) -> tuple[Link, ...]:
    rows = []
    for index, link in enumerate(round_.deeper):
        at = f"{path}/deeper/{index}"
        where = f"{link.file}:{link.line}" if link.file and link.line is not None else link.file
        rows.append(
            (
                name(link.name, 120),
                link.kind,
                number(link.seconds, units.duration, f"{at}/seconds"),
                number(link.ceiling_seconds, units.duration, f"{at}/ceiling_seconds"),
                number(link.gap, units.ratio, f"{at}/gap"),
                name(where, 120) if where else None,
                name(link.note, 200) if link.note else None,
            )
        )
    return tuple(rows)


def pipeline_headline(rounds: Sequence[Placed]) -> Phrase:
    """How the bottleneck moved from the first round to the last."""
    (_, first), (_, last) = rounds[0], rounds[-1]
    if len(rounds) == 1 or first.bottleneck is None or last.bottleneck is None:
        return _headline(last)
    if first.bottleneck == last.bottleneck:
        return say("{} stays the bottleneck", name(last.bottleneck, 60))
    return say("The bottleneck moved from {} to {}", name(first.bottleneck, 60), name(last.bottleneck, 60))
