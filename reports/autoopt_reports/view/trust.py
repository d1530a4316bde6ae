"""The trust strip: what a doubting reader checks first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from autoopt.records import Result
from autoopt_reports.view import units
from autoopt_reports.view.claims import claim_of, repeats_phrase, verified_phrase
from autoopt_reports.view.quality import quality_view
from autoopt_reports.view.text import LONGEST_SENTENCES, Phrase, interval, join, name, number, say

Level = Literal["good", "caution", "open"]


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that makes the result more or less believable. ``open``: not measured."""

    label: str
    level: Level
    text: Phrase


def trust_checks(result: Result) -> tuple[Check, ...]:
    checks = [_noise(result), *_evidence(result), _quality(result), _load(result), *_neighbors(result), _gaps(result)]
    return tuple(check for check in checks if check is not None)


def _noise(result: Result) -> Check:
    aa = interval(result.noise.aa_ratio, "/noise/aa_ratio")
    if aa is None or result.noise.floor is None:
        if aa is None and result.speedup.trained is not None:
            return Check("Noise floor", "open", say("Not measured: whole runs were compared, and no blocks of steps."))
        seen = (
            say("Baseline against itself: {}, but no floor follows from it", aa.phrase)
            if aa
            else say("The baseline was not measured against itself")
        )
        return Check("Noise floor", "open", seen + ", so no gain can be distinguished from noise.")
    floor = number(result.noise.floor, units.percent, "/noise/floor")
    claim = claim_of(result)
    low = claim.interval.low.value if claim.interval is not None else None
    inside = claim.status == "faster" and low is not None and low < 1 + result.noise.floor
    seen = say("{} in one pair of processes", aa.value) if aa.n.value == 1 else aa.phrase
    text = say("Baseline against itself: {}; gains under {} are within noise.", seen, floor)
    control = result.noise.aa_ratio
    doubts = (
        (inside, "The lower bound of the speedup lies under it."),
        (result.noise.failed(result.objective.min_gain), "The control failed: the machine favored one side."),
        (
            control is not None and not control.low <= 1 <= control.high,
            "The interval does not contain 1: the machine favored one side.",
        ),
        (result.noise.floor > 0.05, "That is high: a quieter machine would show smaller gains."),
    )
    doubt = next((words for holds, words in doubts if holds), None)
    return Check("Noise floor", "caution", text + f" {doubt}") if doubt else Check("Noise floor", "good", text)


def _evidence(result: Result) -> Iterator[Check]:
    """Repeats and trainings that the figure rests on; nothing where no change was kept."""
    found = repeats_phrase(result)
    if found is not None:
        enough, text = found
        yield Check("Repeats", "open" if enough is None else "good" if enough else "caution", text)
        verified, text = verified_phrase(result)
        headline, patch = result.speedup.headline, result.patch
        if patch is not None and patch.diff and not (headline is not None and headline.whole):
            verified, text = False, text + " The patched script itself was not run to its end."
        yield Check("End to end", "good" if verified else "caution", text)


def _quality(result: Result) -> Check | None:
    view = quality_view(result)
    if view.claim == "nothing":
        return None
    level: Level = {"not_tested": "open", "lost": "caution", "undecided": "caution"}.get(view.claim, "good")  # type: ignore[assignment]
    return Check(view.short[0].upper() + view.short[1:], level, _basis(result) or view.detail)


def _basis(result: Result) -> Phrase:
    """The evidence for the final plan's level, its price in steps, and what it does not cover; empty where unknown."""
    quality = result.quality
    if quality is None or not quality.rests_on:
        return Phrase()
    text = say("Evidence: {}.", name(quality.rests_on, LONGEST_SENTENCES))
    if quality.step_penalty is not None and quality.step_penalty.value > 1.005:
        price = number(quality.step_penalty.value, units.ratio, "/quality/step_penalty/value")
        what = "The longer way to the target" if quality.level == "trained" else "Rounding"
        text = text + say(" " + what + " counts as {} as many steps.", price)
    if quality.would_miss:
        text = text + say(" Not covered: {}.", name(quality.would_miss, LONGEST_SENTENCES))
    return text


def _neighbors(result: Result) -> list[Check]:
    """Whether candidates could be screened at the same time, from the control of the last incumbent."""
    if not result.sharing:
        return []
    last, at = result.sharing[-1], f"/sharing/{len(result.sharing) - 1}"
    seen = [interval(each, f"{at}/beside/{index}") for index, each in enumerate(last.beside)]
    shown = [each.phrase for each in seen if each is not None]
    reported = say("throughput with neighbors over alone: {}", join(shown)) if shown else say("it was not measured")
    screened = "Candidates were screened at the same time and confirmed alone; {}."
    text = say(screened if last.allowed else "Nothing was screened at the same time; {}.", reported)
    return [Check("Neighbors", "good" if last.allowed else "caution", text)]


def _load(result: Result) -> Check | None:
    foreign = result.noise.foreign_cores
    if foreign is None:
        return None
    shown = number(foreign, lambda cores: f"{cores:.2g}", "/noise/foreign_cores")
    reported = say("Other programs used {} cores while plans were compared.", shown)
    return Check("Busy machine", "caution", reported) if result.noise.busy else Check("Machine", "good", reported)


def _gaps(result: Result) -> Check | None:
    warnings, gaps = len(result.warnings), len(result.not_measured)
    if not warnings and not gaps:
        return Check("Warnings", "good", say("None."))
    shown = number(warnings, units.count, "/warnings", how="count")
    missing = number(gaps, units.count, "/not_measured", how="count")
    words = "No warnings" if not warnings else "{} warning" if warnings == 1 else "{} warnings"
    thing = "; {} thing not measured" if gaps == 1 else "; {} things not measured"
    return Check(
        "Warnings",
        "caution" if warnings else "open",
        say(words + thing + ".", *((shown, missing) if warnings else (missing,))),
    )
