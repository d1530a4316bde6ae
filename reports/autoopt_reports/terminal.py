"""Parts that the terminal views share: colours and signs by meaning, times, streams of few signs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO, Any, cast

from rich.console import Console
from rich.text import Text

from autoopt.events import FirstSteps, Opportunities, Predicted
from autoopt.records import Estimate, EstimateKind, Trial, Verdict
from autoopt_reports.view import units
from autoopt_reports.view.text import change_name, interval, name
from autoopt_reports.view.trials import GROUPS, UNMEASURED, reason_words

NAMED = 5
"""Names of a list that a line holds; the others are counted."""
_BOUND = 10.0
"""An upper bound of a speedup above which it says next to nothing about the gain."""
STYLES = {Verdict.KEPT: "bold blue", Verdict.FAILED: "magenta"}
STYLES |= dict.fromkeys((Verdict.HARMFUL, Verdict.QUALITY_LOST), "yellow")
"""Of the verdicts that do not read dim."""
MARKS = {verdict: mark for verdict, _, _, mark in GROUPS}
"""The sign of each verdict, as on the page."""
PLAIN = str.maketrans(
    {"✓": "+", "↓": "-", "≠": "!", "✗": "x", "○": ".", "▶": ">", "●": "*", "◐": "o", "█": "#", "×": "x", "±": "~",
     "–": "-", "−": "-", "→": "->", "…": ".", "≤": "<", "·": "|", "µ": "u"}
)  # fmt: skip
"""Our signs and their likenesses for streams of few signs; of one column, where lines have a width to keep."""


class PlainStream:
    """A stream that cannot encode our signs: each is written as its likeness, any other character as ``?``."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text.translate(PLAIN).encode("ascii", "replace").decode("ascii"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def encodable(stream: IO[str]) -> IO[str]:
    """The stream itself where its encoding holds our signs, else one that writes them otherwise."""
    try:
        "".join(map(chr, PLAIN)).encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return cast(IO[str], PlainStream(stream))
    return stream


def clock_text(seconds: float) -> str:
    """``0:41``, ``12:05``, ``1:02:03``."""
    whole = max(0, int(seconds))
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def ratio_text(estimate: Estimate | None) -> str:
    """``1.21× [1.18–1.24]``, or "" where nothing was measured."""
    shown = interval(estimate, "")
    return shown.text if shown else ""


def listed(names: Sequence[str]) -> str:
    """``a, b, c, d, e and 4 more``."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(str(name(each, 60)) for each in names[:NAMED]) + more


def grouped(values: Iterable[tuple[str, str]]) -> list[str]:
    """``2.2× workers, cache`` for each value with its names; names beyond the first few are counted."""
    named, groups = list(values), dict[str, list[str]]()
    for value, strategy in named[:NAMED]:
        groups.setdefault(value, []).append(strategy)
    texts = [f"{value} {', '.join(names)}" for value, names in groups.items()]
    return [*texts, f"{len(named) - NAMED} more"] if len(named) > NAMED else texts


def first_steps_text(seen: FirstSteps) -> str:
    """``59 ms a step; data 55 %, forward 20 %``: the stages that take 5 % of a step or more."""
    ranked = sorted(seen.shares.items(), key=lambda item: -item[1])
    stages = ", ".join(f"{stage} {units.percent(share)}" for stage, share in ranked if share >= 0.05)
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
    """``1.50× amp`` for each predicted gain, then upper bounds, and strategies without a prediction.

    A gain whose interval reaches down to none is the most that is possible.
    """

    def text(gain: Estimate | None) -> str:
        if gain is None:
            return "no prediction for"
        bound = gain.kind is EstimateKind.BOUND or gain.low <= 1.0
        return ("at most " if bound else "") + units.ratio(gain.value)

    pairs = [(each.predicted, each.strategy) for each in found.predictions]
    found_texts = [(text(gain), strategy) for gain, strategy in pairs if gain is None or gain.value >= 1.005]
    return grouped(found_texts) or ["none"]  # below 1.005 a speedup reads 1.00x


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
    if trial.verdict in {Verdict.FAILED, *UNMEASURED} or not gain:
        return name(reason_words(trial.reason)).text or units.NOT_MEASURED
    return gain if trial.time_to_target is None else f"{gain} {of_what(has_target, trial.planned_steps)}"


def fit(text: str, width: int) -> str:
    """``text`` cut to so many terminal cells, with an ellipsis."""
    shown = Text(text)
    shown.truncate(max(0, width), overflow="ellipsis")
    return shown.plain


def console_for(stream: IO[str]) -> Console:
    """rich decides on colours: NO_COLOR, FORCE_COLOR and TERM=dumb are its business."""
    return Console(file=encodable(stream), highlight=False, emoji=False, markup=False, soft_wrap=False)
