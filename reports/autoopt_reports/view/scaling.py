"""Several processes: throughput over one, what of it is lost, and what messages between them cost."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result
from autoopt.records.distributed import Communication, ScalingForecast, ScalingPoint
from autoopt_reports.view import units
from autoopt_reports.view.closing import Detail
from autoopt_reports.view.text import Interval, Name, Number, Phrase, interval, number, say


@dataclass(frozen=True, slots=True)
class ScalingRow:
    processes: Number
    throughput: Interval
    efficiency: Interval
    source: Name


@dataclass(frozen=True, slots=True)
class ScalingView:
    headline: Phrase
    rows: tuple[ScalingRow, ...]
    forecast: tuple[ScalingRow, ...]
    details: tuple[Detail, ...]


def scaling_view(result: Result) -> ScalingView | None:
    """None where the final plan trains in one process."""
    found = result.scaling
    if found is None:
        return None
    rows = tuple(_row(point, f"/scaling/points/{index}") for index, point in enumerate(found.points))
    forecast = tuple(_row(point, f"/scaling/forecast/{index}") for index, point in enumerate(found.forecast or ()))
    details = _details(found.communication) if found.communication is not None else ()
    return ScalingView(_headline(rows), rows, forecast, details)


def _row(point: ScalingPoint | ScalingForecast, at: str) -> ScalingRow:
    throughput, efficiency = (
        interval(point.throughput, f"{at}/throughput"),
        interval(point.efficiency, f"{at}/efficiency", units.percent),
    )
    assert throughput is not None
    assert efficiency is not None
    if isinstance(point, ScalingForecast):
        words = "simulated on the graph, not measured"
    else:
        words = "measured alternately" if point.source == "measured" else "the trial that made it so many"
    return ScalingRow(number(point.processes, units.count, f"{at}/processes"), throughput, efficiency, Name(words))


def _headline(rows: tuple[ScalingRow, ...]) -> Phrase:
    if not rows:
        return say("How it scales was not measured")
    last = rows[-1]
    return say(
        "{} processes train {} as fast as one: scaling efficiency {}",
        last.processes,
        last.throughput.phrase,
        last.efficiency.phrase,
    )


def _details(sent: Communication) -> tuple[Detail, ...]:
    at = "/scaling/communication"
    lines = [
        Detail("gradients sent in a step", number(sent.gradient_bytes, units.bytes_, f"{at}/gradient_bytes")),
        Detail("sending them alone", number(sent.alone.median, units.duration, f"{at}/alone/median")),
        Detail("of it exposed in the step", number(sent.exposed, units.duration, f"{at}/exposed")),
    ]
    lines += [
        Detail(f"rank {rank} by itself", number(spread.median, units.duration, f"{at}/apart/{rank}/median"))
        for rank, spread in enumerate(sent.apart)
    ]
    if sent.synchronized_seconds is not None:
        layers = number(sent.synchronized_layers, units.count, f"{at}/synchronized_layers")
        seconds = number(sent.synchronized_seconds, units.duration, f"{at}/synchronized_seconds")
        lines += [Detail("BatchNorm layers over all processes", layers), Detail("what they add to a step", seconds)]
    if sent.straggler is not None:
        lines.append(
            Detail("the rank that the others wait for", number(sent.straggler, units.count, f"{at}/straggler"))
        )
    lines += [
        Detail(f"all-reduce of {units.bytes_(size)}", number(seconds, units.duration, f"{at}/by_size/{size}"))
        for size, seconds in sent.by_size.items()
    ]
    return tuple(lines)
