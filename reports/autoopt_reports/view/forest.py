"""The ablation: what each change is worth in the final plan, and alone on the baseline."""

from __future__ import annotations

from dataclasses import dataclass

from autoopt.records import Ablation, Result
from autoopt_reports.view import units
from autoopt_reports.view.text import Interval, Name, Number, Phrase, change_name, interval, name, say


@dataclass(frozen=True, slots=True)
class ForestRow:
    label: Name
    without: Interval | None
    alone: Interval | None
    beside: Phrase | None = None
    """Of ``without``: what else was in the plan then."""


@dataclass(frozen=True, slots=True)
class Forest:
    headline: Phrase
    rows: tuple[ForestRow, ...]
    band: tuple[float, float] | None
    band_words: Phrase


def forest_view(result: Result) -> Forest | None:
    """None where no ablation was measured."""
    rows = [
        ForestRow(
            change_name(a.strategy, a.setting, longest=90),
            interval(a.without, f"/ablation/{i}/without"),
            interval(a.alone, f"/ablation/{i}/alone"),
            _beside(a),
        )
        for i, a in enumerate(result.ablation)
    ]
    if not any(row.without or row.alone for row in rows):
        return None
    rows.sort(key=lambda row: -(row.without.value.value or 0) if row.without else 0.0)
    floor = result.noise.floor
    band = (1 / (1 + floor), 1 + floor) if floor is not None else None
    words = (
        say("Grey: gains under the noise floor of {}", Number(units.percent(floor), floor, ("/noise/floor",)))
        if floor is not None
        else say("The noise floor was not measured.")
    )
    return Forest(_headline(rows, floor or 0.0), tuple(rows), band, words)


def _beside(ablation: Ablation) -> Phrase | None:
    others = ", ".join(ablation.beside)
    return say("while {} was in the plan as well, dropped since", name(others, 80)) if others else None


def _headline(rows: list[ForestRow], floor: float) -> Phrase:
    tested = [row for row in rows if row.without is not None]
    clear = [row for row in tested if row.without and (row.without.low.value or 0) > 1 + floor]
    if not tested:
        return say("No change was taken out of the final plan; only its gain alone was measured")
    if not clear:
        return say("No change clears the noise when it is taken out of the final plan")
    best = clear[0]
    assert best.without is not None
    words = (
        "With {} the plan is {} as fast as without it"
        if len(clear) == 1
        else ("{} is worth most: {} as fast with it as without it")
    )
    return say(words, best.label, best.without.phrase) + (
        say("; every change clears the noise") if len(clear) == len(rows) > 1 else Phrase()
    )
