"""Several trainings side by side: numbers of processes, sizes of a model, values of hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoopt.records.distributed import Communication, Scaling, ScalingForecast, ScalingPoint
from autoopt.records.model_scaling import ModelScaling, ModelSizePoint, PowerLaw, SizeRun
from autoopt.records.tuning import Tuning
from autoopt_reports.view import units
from autoopt_reports.view.text import (
    Detail,
    Name,
    Phrase,
    interval,
    join,
    name,
    number,
    numbers,
    say,
    setting_text,
)


class ScalingRow:
    """So many processes; ``at``: their pointer."""

    def __init__(self, point: ScalingPoint | ScalingForecast, at: str) -> None:
        self.processes = number(point.processes, units.count, f"{at}/processes")
        self.throughput = interval(point.throughput, f"{at}/throughput")
        self.efficiency = interval(point.efficiency, f"{at}/efficiency", units.percent)
        known = {"measured": "measured alternately", "trial": "the trial that made it so many"}
        words = "simulated on the graph, not measured" if isinstance(point, ScalingForecast) else known[point.source]
        self.source = Name(words)


class ScalingView:
    def __init__(self, found: Scaling) -> None:
        points, reported = enumerate(found.points), enumerate(found.forecast or ())
        self.rows = tuple(ScalingRow(point, f"/scaling/points/{index}") for index, point in points)
        self.forecast = tuple(ScalingRow(point, f"/scaling/forecast/{index}") for index, point in reported)
        self.details = _details(found.communication) if found.communication is not None else ()
        self.headline = say("How it scales was not measured")
        if self.rows:
            last = self.rows[-1]
            words = "{} processes train {} as fast as one: scaling efficiency {}"
            self.headline = say(words, last.processes, last.throughput.phrase, last.efficiency.phrase)


def _details(sent: Communication) -> tuple[Detail, ...]:
    at = "/scaling/communication"
    lines = [
        ("gradients sent in a step", number(sent.gradient_bytes, units.bytes_, f"{at}/gradient_bytes")),
        ("sending them alone", number(sent.alone.median, units.duration, f"{at}/alone/median")),
        ("of it exposed in the step", number(sent.exposed, units.duration, f"{at}/exposed")),
    ]
    lines += [
        (f"rank {rank} by itself", number(spread.median, units.duration, f"{at}/apart/{rank}/median"))
        for rank, spread in enumerate(sent.apart)
    ]
    if sent.synchronized_seconds is not None:
        layers = number(sent.synchronized_layers, units.count, f"{at}/synchronized_layers")
        seconds = number(sent.synchronized_seconds, units.duration, f"{at}/synchronized_seconds")
        lines += [("BatchNorm layers over all processes", layers), ("what they add to a step", seconds)]
    if sent.straggler is not None:
        lines.append(("the rank that the others wait for", number(sent.straggler, units.count, f"{at}/straggler")))
    lines += [
        (f"all-reduce of {units.bytes_(size)}", number(seconds, units.duration, f"{at}/by_size/{size}"))
        for size, seconds in sent.by_size.items()
    ]
    return tuple(lines)


AS_IT_IS = "as it is"


class SizeRow:
    """One training. ``trial``: None for the model as ``build()`` gives it by default."""

    def __init__(self, point: ModelSizePoint, run: SizeRun, at: str, of_run: str) -> None:
        self.size = name(setting_text(point.arguments) or AS_IT_IS, 80)
        self.trial = None if point.trial is None else number(point.trial, units.count, f"{at}/trial")
        self.parameters = number(point.parameters, units.count, f"{at}/parameters")
        forms = {"seed": units.count, "metric": units.plain, "seconds": units.duration}
        self.seed, self.metric, self.seconds = numbers(run, of_run, **forms)
        self.missed = run.reached is False


@dataclass(frozen=True, slots=True)
class LawView:
    """A law, or why there is none. ``line``: parameters, value, low and high; ``error_of``: the metric that is to be
    taken from one, for whoever draws it."""

    of: Literal["error", "seconds"]
    title: str
    said: Phrase
    line: tuple[tuple[float, float, float, float], ...]
    target: float | None


class ModelScalingView:
    """Trainings of models of several sizes, and the laws that were fitted to them."""

    def __init__(self, found: ModelScaling) -> None:
        self.headline = _sizes_headline(found)
        at = "/model_scaling/points"
        self.rows = tuple(
            SizeRow(point, run, f"{at}/{place}", f"{at}/{place}/runs/{index}")
            for place, point in enumerate(found.points)
            for index, run in enumerate(point.runs)
        )
        self.laws = (_law(found, "error", found.error), _law(found, "seconds", found.seconds))
        self.metric = name(found.metric or "metric", 40)
        self.mode = found.mode
        steps = number(found.steps, units.count, "/model_scaling/steps")
        self.metric_head = say("{} after {} steps", self.metric, steps)


def _sizes_headline(found: ModelScaling) -> Phrase:
    """The size that just reaches the target where it is reported, else the exponents."""
    sizes = number(len(found.points), units.count, "/model_scaling/points", how="count")
    if not found.points:
        return say("Other sizes were tried, and none was trained to its end")
    text = say("Sizes of the model that were trained: {}; ", sizes)
    if found.error is not None and found.error.at_target is not None:
        return text + _met(found, found.error)
    reported = [_exponent(law) for law in (found.error, found.seconds) if law is not None]
    return text + (join(reported, "; ") if reported else "too few for a line through them")


def _met(found: ModelScaling, law: PowerLaw) -> Phrase:
    steps = number(found.steps, units.count, "/model_scaling/steps")
    met = interval(law.at_target, "/model_scaling/error/at_target", units.count)
    assert met is not None
    return say("after {} steps the line meets the target at {} parameters", steps, met.phrase)


def _exponent(law: PowerLaw) -> Phrase:
    exponent = interval(law.exponent, f"/model_scaling/{law.of}/exponent", unit="")
    what = "the error" if law.of == "error" else "time to target"
    return say(what + " goes with the parameters to the power of {}", exponent.phrase)


def _law(found: ModelScaling, of: Literal["error", "seconds"], law: PowerLaw | None) -> LawView:
    title = "What was learnt" if of == "error" else "Time to target"
    if law is None:
        why = name(found.missing.get(of, ""), 300)
        return LawView(of, title, say("No line was fitted: {}", why), (), None)
    at = f"/model_scaling/{of}"
    exponent = interval(law.exponent, f"{at}/exponent", unit="")
    assert exponent.confidence is not None
    said = _exponent(law) + say(
        " ({} CI; standard error {}; {} trainings of {} sizes",
        exponent.confidence,
        number(law.standard_error, units.significant, f"{at}/standard_error"),
        *numbers(law, at, units.count, "runs", "sizes"),
    )
    if law.by_size:
        said += say(", which lie farther from a line than trainings of one size from each other: each size counts once")
    said += say(")")
    if law.at_target is not None:
        said += say("; ") + _met(found, law)
    elif law.note:
        said += say("; the size that just reaches the target is unknown: {}", name(law.note, 200))
    line = tuple((place.parameters, place.value, place.low, place.high) for place in law.line)
    target = None if of == "seconds" or found.target is None else _error(found.target, found.mode)
    return LawView(of, title, said, line, target if target is None or target > 0 else None)


def _error(metric: float, mode: str) -> float:
    return metric if mode == "min" else 1.0 - metric


def drawn(view: ModelScalingView, of: str) -> list[tuple[SizeRow, float, float]]:
    """Rows with parameters and value, above 0, as the law of ``of`` was fitted to them."""
    found = []
    for row in view.rows:
        value = row.seconds.value if of == "seconds" else row.metric.value
        if value is not None and of == "error":
            value = _error(value, view.mode)
        if value is not None and value > 0 and row.parameters.value:
            found.append((row, row.parameters.value, value))
    return found


STATES = {
    "reached": "target reached",
    "not_reached": "target not reached",
    "pruned": "ended early",
    "failed": "failed",
}


class TuningRow:
    """One training. ``kind``: "baseline" for the workload's own values, "final" for the best, else its state."""

    def __init__(self, tuning: Tuning, place: int) -> None:
        trial, at = tuning.trials[place], f"/tuning/trials/{place}"
        ours = {tuning.default: "baseline", tuning.best: "final"}
        self.number, self.kind, self.state = trial.number, ours.get(trial.number, trial.state), STATES[trial.state]
        self.values = tuple(number(trial.values[each], units.plain, f"{at}/values/{each}") for each in tuning.own)
        forms = {"seconds_to_target": units.duration, "metric": units.plain, "steps": units.count}
        self.seconds, self.metric, self.steps = numbers(trial, at, **forms)
        self.reason = name(trial.reason, 160) if trial.reason else ""


class TuningView:
    def __init__(self, tuning: Tuning) -> None:
        self.headline = _tuning_headline(tuning)
        self.parameters = tuple(name(each, 40) for each in tuning.own)
        self.rows = tuple(TuningRow(tuning, place) for place in range(len(tuning.trials)))
        self.importance = tuple(
            (name(each, 40), number(share, units.percent, f"/tuning/importance/{each}"))
            for each, share in sorted((tuning.importance or {}).items(), key=lambda item: -item[1])
        )
        self.metric = name(tuning.metric or "metric", 40)
        self.metric_head = say("best {}", self.metric)
        self.target = number(tuning.target, units.plain, "/tuning/target")
        self.note = name(tuning.note, 240) if tuning.note else None


def _tuning_headline(tuning: Tuning) -> Phrase:
    if not tuning.trials:
        return say("Nothing was tuned: {}", name(tuning.note or "no trial was made", 240))
    best, own = tuning.trial(tuning.best), tuning.trial(tuning.default)
    if best is None:
        return say("No values reached the target within the steps that the workload's own need")
    row = TuningRow(tuning, tuning.trials.index(best))
    pairs = zip(tuning.own, row.values, strict=True)
    values = join([say(" {} {}", name(each, 40), value) for each, value in pairs], "")
    text = say("Best on the tuning seed:{}, target after {}", values, row.seconds)
    if own is None or own.seconds_to_target is None:
        return text
    return text + say("; the workload's own values, {}", TuningRow(tuning, tuning.trials.index(own)).seconds)
