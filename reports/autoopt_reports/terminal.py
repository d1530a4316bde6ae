"""Parts that the terminal views share: colours by meaning, marks that the encoding can show, times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.text import Text

from autoopt.events import FirstLook, Opportunities, Predicted
from autoopt.records import Estimate, EstimateKind, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import change_name, interval, name
from autoopt_reports.view.trials import reason_words

_LEAST_SHARE = 0.05
_LEAST_GAIN = 1.005
_NAMED = 6
_BOUND = 10.0
"""A speedup above which what a strategy leaves of a step says next to nothing of what it will bring."""
"""Strategies that have to look closer first, as many as are named."""
STYLES = {
    Verdict.KEPT: "bold blue",
    Verdict.NO_GAIN: "dim",
    Verdict.HARMFUL: "yellow",
    Verdict.QUALITY_LOST: "yellow",
    Verdict.INCONCLUSIVE: "dim",
    Verdict.FAILED: "magenta",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.NOT_TRIED: "dim",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """Symbols; ASCII ones where the stream cannot encode the others."""

    kept: str = "✓"
    no_gain: str = "="
    harmful: str = "↓"
    quality_lost: str = "≠"
    inconclusive: str = "?"
    failed: str = "✗"
    not_applicable: str = "–"
    not_tried: str = "○"
    caution: str = "!"
    running: str = "▶"
    done: str = "●"
    now: str = "◐"
    ahead: str = "○"
    bar: str = "█"
    times: str = "×"
    dash: str = "–"
    dot: str = "·"
    arrow: str = "→"
    more: str = "…"
    most: str = "≤"

    def of(self, verdict: Verdict) -> str:
        mark: str = getattr(self, verdict.value)
        return mark


ASCII = Marks(
    kept="+",
    harmful="-",
    quality_lost="!",
    failed="x",
    not_applicable="-",
    not_tried="o",
    running=">",
    done="*",
    now="o",
    ahead=".",
    bar="#",
    times="x",
    dash="-",
    dot="|",
    arrow="->",
    more="...",
    most="at most ",
)


def marks_for(stream: IO[str]) -> Marks:
    """Unicode marks where the stream's encoding holds them."""
    try:
        "✓◐█×–·→≤▶●…≠".encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return Marks()


def encodable(text: str, marks: Marks) -> str:
    """Our own signs in ``text`` replaced where the stream cannot show them."""
    if marks is not ASCII:
        return text
    signs = {"×": "x", "–": "-", "−": "-", "→": "->", "…": "...", "·": "|", "µ": "u"}
    return "".join(signs.get(character, character) for character in text).encode("ascii", "replace").decode("ascii")


def clock_text(seconds: float) -> str:
    """``0:41``, ``12:05``, ``1:02:03``."""
    whole = max(0, int(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def ratio_text(estimate: Estimate | None) -> str:
    """``1.21× [1.18–1.24]``, or "" where nothing was measured."""
    shown = interval(estimate, "")
    return shown.text if shown else ""


def look_text(look: FirstLook) -> str:
    """``59 ms a step, data 55% (2.2× at most without it), ...``: stages by what there is to gain, as an upper bound."""
    ranked = sorted(look.shares.items(), key=lambda item: -item[1])
    stages = [
        f"{stage} {units.percent(share)}"
        + (f" ({units.ratio(1 / (1 - share))} at most without it)" if share < 1 else "")
        for stage, share in ranked
        if share >= _LEAST_SHARE
    ]
    return ", ".join([f"{units.duration(look.step_seconds)} a step", *stages])


def opportunity_texts(found: Opportunities) -> list[str]:
    """``2.2× at most: workers, cache`` for each group, and the strategies that have to look closer first.

    Those that may shorten nearly all of a step come first: what is left of it without them is no bound of their gain.
    """
    unbound = [name for value, names in found.at_most if value > _BOUND for name in names]
    texts = [f"no bound yet: {', '.join(unbound)}"] if unbound else []
    texts += [f"{units.ratio(value)} at most: {', '.join(names)}" for value, names in found.at_most if value <= _BOUND]
    more = len(found.unknown) - _NAMED
    if found.unknown:
        told = ", ".join(found.unknown[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        texts.append(f"to be looked into: {told}")
    return texts or ["none that the first steps show"]


def prediction_texts(found: Predicted) -> list[str]:
    """``1.50× predicted: amp`` for each group, then bounds as of opportunities, and what nothing is known of."""
    grouped: dict[str, list[str]] = {}
    for each in found.predictions:
        predicted = each.predicted
        if predicted is not None and predicted.value < _LEAST_GAIN:
            continue
        kind = "at most" if predicted is not None and predicted.kind is EstimateKind.BOUND else "predicted"
        told = f"{units.ratio(predicted.value)} {kind}" if predicted is not None else "no prediction"
        grouped.setdefault(told, []).append(each.strategy)
    return [f"{told}: {', '.join(names)}" for told, names in grouped.items()] or ["none"]


def trial_change(trial: Trial, longest: int = 60) -> str:
    return change_name(trial.strategy, trial.setting, trial.companions, longest).text


def of_what(has_target: bool, planned_steps: int | None) -> str:
    """Of what a gain in time is."""
    if planned_steps:
        return "over the planned run"
    return "to target" if has_target else "for the same steps"


def trial_outcome(trial: Trial, has_target: bool = True) -> str:
    """Outcome of a trial in few words: the gain, or why there is none."""
    gain = ratio_text(trial.time_to_target or trial.throughput)
    if trial.verdict in {Verdict.FAILED, Verdict.NOT_APPLICABLE, Verdict.NOT_TRIED} or not gain:
        return name(reason_words(trial.reason)).text or "not measured"
    return gain if trial.time_to_target is None else f"{gain} {of_what(has_target, trial.planned_steps)}"


def fit(text: str, width: int, marks: Marks) -> str:
    """``text`` cut to so many terminal cells, with an ellipsis."""
    shown = Text(text)
    if shown.cell_len <= width:
        return text
    shown.truncate(max(0, width - len(marks.more)))
    return shown.plain + marks.more


def console_for(stream: IO[str]) -> Console:
    """rich decides on colours: NO_COLOR, FORCE_COLOR and TERM=dumb are its business."""
    return Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=False)


def percent(value: float) -> str:
    return units.percent(value)
