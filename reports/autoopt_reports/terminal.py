"""Parts that the terminal views share: colours by meaning, marks that the encoding can show, times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from rich.console import Console
from rich.text import Text

from autoopt.events import FirstSteps, Opportunities, Predicted
from autoopt.records import Estimate, EstimateKind, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import change_name, interval, name
from autoopt_reports.view.trials import reason_words

_LEAST_SHARE = 0.05
"""Of the step: smaller stages are not named."""
_LEAST_GAIN = 1.005
"""Below it a speedup reads 1.00x."""
NAMED = 5
"""Names of a list that a line holds; the others are counted."""
_BOUND = 10.0
"""An upper bound of a speedup above which it says next to nothing about the gain."""
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


def listed(names: Sequence[str], most: int = NAMED) -> str:
    """``a, b, c, d, e and 4 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(str(name(each, 60)) for each in names[:most]) + more


def grouped(values: Iterable[tuple[str, str]]) -> list[str]:
    """``2.2× workers, cache`` for each value with its names; names beyond the first few are counted."""
    named, groups = list(values), dict[str, list[str]]()
    for value, strategy in named[:NAMED]:
        groups.setdefault(value, []).append(strategy)
    texts = [f"{value} {', '.join(names)}" for value, names in groups.items()]
    return [*texts, f"{len(named) - NAMED} more"] if len(named) > NAMED else texts


def first_steps_text(seen: FirstSteps) -> str:
    """``59 ms a step; data 55 %, forward 20 %``: the stages that take most of a step."""
    ranked = sorted(seen.shares.items(), key=lambda item: -item[1])
    stages = ", ".join(f"{stage} {units.percent(share)}" for stage, share in ranked if share >= _LEAST_SHARE)
    return f"{units.duration(seen.step_seconds)} a step" + (f"; {stages}" if stages else "")


def opportunity_texts(found: Opportunities) -> list[str]:
    """``2.2× workers, cache`` for each upper bound, and how many strategies need a measurement first.

    Strategies that may shorten nearly all of a step come first: the rest of the step is no bound of their gain.
    """
    bounds = sorted(found.at_most, key=lambda item: item[0] <= _BOUND)
    texts = grouped(
        (units.ratio(value) if value <= _BOUND else "no bound for", name) for value, names in bounds for name in names
    )
    if found.unknown:
        texts.append(f"{len(found.unknown)} need a measurement first")
    return texts or ["none from the first steps"]


def prediction_texts(found: Predicted) -> list[str]:
    """``1.50× amp`` for each predicted gain, then upper bounds, and strategies without a prediction."""
    kinds = {EstimateKind.BOUND: "at most "}
    pairs = [(each.predicted, each.strategy) for each in found.predictions]
    return grouped(
        (kinds.get(gain.kind, "") + units.ratio(gain.value) if gain is not None else "no prediction for", strategy)
        for gain, strategy in pairs
        if gain is None or gain.value >= _LEAST_GAIN
    ) or ["none"]


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
