"""The step before and after, on one basis, how the kept changes lead from one to the other, and what each is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from autoopt.records import Result
from autoopt_reports.view import units
from autoopt_reports.view.quality import kept_trials
from autoopt_reports.view.text import Interval, Name, Number, Phrase, change_name, interval, name, number, say


@dataclass(frozen=True, slots=True)
class Basis:
    """Seconds before and after. Paths: the first is divided by all the others."""

    words: Phrase
    before: float
    after: float
    before_paths: tuple[str, ...]
    after_paths: tuple[str, ...]


def step_basis(result: Result) -> Basis | None:
    """The mean time for the baseline's batch, from the throughput, which is what trials compare.

    So a plan with another batch is compared on as many samples, and a step time of two humps (a loader
    that stalls now and then) is not known from its median. Without a throughput, the median step.
    """
    before, after, batch = result.baseline, result.best, result.workload.batch_size
    paths: tuple[str, ...] = ("/workload/batch_size",)
    how = ""
    if batch and result.workload.processes > 1:  # of a script that a launcher starts: each process has as many
        batch, how = batch * result.workload.processes, "product"
        paths = (*paths, "/workload/processes")
    if batch and before.samples_per_second and after.samples_per_second:
        size = number(batch, units.count, *paths, how=how)
        words = say("{} samples, one batch of the baseline, in interleaved blocks", size)
        seconds = batch / before.samples_per_second, batch / after.samples_per_second
        return Basis(words, *seconds, (*paths, "/baseline/samples_per_second"), (*paths, "/best/samples_per_second"))
    if before.step_seconds is not None and after.step_seconds is not None:
        words, paths = say("one training step in interleaved blocks, median"), ("/baseline/step_seconds/p50",)
        return Basis(words, before.step_seconds.p50, after.step_seconds.p50, paths, ("/best/step_seconds/p50",))
    return None


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of the waterfall: from ``start`` to ``end`` seconds; ``shown``: its length; a total's level."""

    kind: Literal["total", "gain", "loss", "rest"]
    label: Name | str
    start: float
    end: float
    shown: Number
    trial: int | None = None


@dataclass(frozen=True, slots=True)
class Waterfall:
    headline: Phrase
    basis: Phrase
    bars: tuple[Bar, ...]
    note: Phrase


def waterfall_view(result: Result) -> Waterfall | None:
    """From the baseline's step to the final one. The bars sum exactly, also as printed.

    Each change takes the share that its trial measured against the incumbent of that moment; what
    these shares do not explain of the final measurement is the interaction bar.
    """
    basis = step_basis(result)
    kept = [(i, t) for i, t in kept_trials(result) if t.throughput is not None]
    if basis is None or not (kept or result.found):
        return None
    levels, paths = [basis.before], [basis.before_paths]
    for index, trial in kept:
        assert trial.throughput is not None
        levels.append(levels[-1] / trial.throughput.value)
        paths.append((*paths[-1], f"/trials/{index}/throughput/value"))
    highest = max(*levels, basis.after)  # gives the unit of the whole chart, of four significant digits
    scale, unit = units.time_unit(highest)
    decimals = max(0, 3 - math.floor(math.log10(highest / scale)))
    shown = [round(level / scale, decimals) for level in (*levels, basis.after)]

    def total(label: str, place: int, level: float, source: tuple[str, ...]) -> Bar:
        seen = Number(f"{shown[place]:,.{decimals}f} {unit}", level, source, "quotient")
        return Bar("total", label, 0.0, level, seen)

    def delta(place: int, end: float, source: tuple[str, ...]) -> Number:
        difference = round(shown[place] - shown[place - 1], decimals) + 0.0
        sign = "−" if difference < 0 else "+"
        text = f"{sign}{abs(difference):,.{decimals}f} {unit}"
        return Number(text, end - levels[place - 1], (*source, "-", *paths[place - 1]), "quotients")

    bars = [total("baseline", 0, basis.before, basis.before_paths)]
    for place, (_, trial) in enumerate(kept, start=1):
        label = name(" + ".join([trial.strategy, *(other.strategy for other in trial.companions)]), 60)
        kind: Literal["gain", "loss"] = "gain" if levels[place] <= levels[place - 1] else "loss"
        found = delta(place, levels[place], paths[place])
        bars.append(Bar(kind, label, levels[place - 1], levels[place], found, trial.id))
    left = delta(len(levels), basis.after, basis.after_paths)
    bars.append(Bar("rest", "interaction and re-measurement", levels[-1], basis.after, left))
    bars.append(total("final", len(levels), basis.after, basis.after_paths))
    headline = say("From {} to {}", bars[0].shown, bars[-1].shown)
    gains = [bar for bar in bars if bar.kind == "gain"]
    if gains:
        largest = min(gains, key=lambda bar: bar.end - bar.start)
        headline += say("; the largest piece is {} ({})", largest.label, largest.shown)
    note = say(
        "Each change takes the share its own trial measured against the plan of that moment; the interaction bar is "
        "what these shares do not explain of the final measurement."
    )
    dropped = {t.strategy for _, t in kept_trials(result)} - set(result.best.plan.names())
    if dropped:
        note += say(" It also holds the removal of {}, dropped after the ablation.", Name(", ".join(sorted(dropped))))
    return Waterfall(headline, basis.words, tuple(bars), note)


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
            say("while {} was in the plan as well, dropped since", name(", ".join(a.beside), 80)) if a.beside else None,
        )
        for i, a in enumerate(result.ablation)
    ]
    if not any(row.without or row.alone for row in rows):
        return None
    rows.sort(key=lambda row: -(row.without.value.value or 0) if row.without else 0.0)
    floor = result.noise.floor
    band = (1 / (1 + floor), 1 + floor) if floor is not None else None
    words = say("The noise floor was not measured.")
    if floor is not None:
        words = say("Grey: gains under the noise floor of {}", number(floor, units.percent, "/noise/floor"))
    tested = [(row.label, row.without) for row in rows if row.without is not None]
    clear = [(label, gain) for label, gain in tested if (gain.low.value or 0) > 1 + (floor or 0.0)]
    headline = say("No change was removed from the final plan; only its gain alone was measured")
    if clear:
        label, gain = clear[0]
        one, most = "With {} the plan is {} as fast as without it", "{} is worth most: {} as fast with it as without it"
        headline = say(one if len(clear) == 1 else most, label, gain.phrase)
        headline += say("; every change clears the noise") if len(clear) == len(rows) > 1 else Phrase()
    elif tested:
        headline = say("No change clears the noise when it is removed from the final plan")
    return Forest(headline, tuple(rows), band, words)
