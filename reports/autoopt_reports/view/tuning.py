"""The search of hyper-parameters: each training with its values, what was pruned, and which parameter mattered."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Result
from autoopt.records.tuning import Tuning, TuningTrial
from autoopt_reports.view import units
from autoopt_reports.view.text import Name, Number, Phrase, name, number, say

STATES = {
    "reached": "target reached",
    "not_reached": "target not reached",
    "pruned": "ended early",
    "failed": "failed",
}


@dataclass(frozen=True, slots=True)
class TuningRow:
    """One training. ``kind``: "baseline" for the workload's own values, "final" for the best, else its state."""

    number: int
    kind: str
    state: str
    values: tuple[Number, ...]
    seconds: Number
    metric: Number
    steps: Number
    reason: Name | str


@dataclass(frozen=True, slots=True)
class TuningView:
    headline: Phrase
    parameters: tuple[Name, ...]
    rows: tuple[TuningRow, ...]
    importance: tuple[tuple[Name, Number], ...]
    metric: Name
    target: Number
    note: Name | None


def tuning_view(result: Result) -> TuningView | None:
    """None where nothing was to be tuned."""
    tuning = result.tuning
    if tuning is None:
        return None
    names = list(tuning.own)
    return TuningView(
        headline=_headline(tuning),
        parameters=tuple(name(each, 40) for each in names),
        rows=tuple(_row(tuning, place, trial, names) for place, trial in enumerate(tuning.trials)),
        importance=tuple(
            (name(each, 40), number(share, units.percent, f"/tuning/importance/{each}"))
            for each, share in sorted((tuning.importance or {}).items(), key=lambda item: -item[1])
        ),
        metric=name(tuning.metric or "metric", 40),
        target=number(tuning.target, units.plain, "/tuning/target"),
        note=name(tuning.note, 240) if tuning.note else None,
    )


def _headline(tuning: Tuning) -> Phrase:
    if not tuning.trials:
        return say("Nothing was tuned: {}", name(tuning.note or "no trial was made", 240))
    best, own = tuning.trial(tuning.best), tuning.trial(tuning.default)
    if best is None:
        return say("No values reached the target within the steps that the workload's own need")
    seconds = _seconds(tuning, best)
    values = say("")
    for each in tuning.own:
        path = f"/tuning/trials/{_place(tuning, best)}/values/{each}"
        values = values + say(" {} {}", name(each, 40), number(best.values[each], units.plain, path))
    if own is None or own.seconds_to_target is None:
        return say("Best on the tuning seed:{}, target after {}", values, seconds)
    return say(
        "Best on the tuning seed:{}, target after {}; the workload's own values, {}",
        values,
        seconds,
        _seconds(tuning, own),
    )


def _place(tuning: Tuning, trial: TuningTrial) -> int:
    return tuning.trials.index(trial)


def _seconds(tuning: Tuning, trial: TuningTrial) -> Number:
    path = f"/tuning/trials/{_place(tuning, trial)}/seconds_to_target"
    return number(trial.seconds_to_target, units.duration, path)


def _row(tuning: Tuning, place: int, trial: TuningTrial, names: list[str]) -> TuningRow:
    at = f"/tuning/trials/{place}"
    kind = "final" if trial.number == tuning.best else "baseline" if trial.number == tuning.default else trial.state
    return TuningRow(
        number=trial.number,
        kind=kind,
        state=STATES[trial.state],
        values=tuple(number(trial.values[each], units.plain, f"{at}/values/{each}") for each in names),
        seconds=number(trial.seconds_to_target, units.duration, f"{at}/seconds_to_target"),
        metric=number(trial.metric, units.plain, f"{at}/metric"),
        steps=number(trial.steps, units.count, f"{at}/steps"),
        reason=name(trial.reason, 160) if trial.reason else "",
    )
