"""What may be said of the quality of the final plan, from the gates that its changes passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoopt.records import Quality, Result, Trial, Verdict
from autoopt_reports.view.text import Phrase, name, number, say
from autoopt_reports.view.units import plain

Claim = Literal["same_losses", "equivalent", "not_inferior", "not_tested", "lost", "nothing"]

# From the weakest claim to the strongest: a plan may claim what the weakest of its changes may.
_ORDER: tuple[Claim, ...] = ("lost", "not_tested", "not_inferior", "equivalent", "same_losses")

_SHORT: dict[Claim, str] = {
    "same_losses": "same losses",
    "equivalent": "same quality",
    "not_inferior": "quality not inferior",
    "not_tested": "quality not tested",
    "lost": "quality lost",
    "nothing": "unchanged",
}


@dataclass(frozen=True, slots=True)
class QualityView:
    claim: Claim
    short: str
    detail: Phrase


def kept_trials(result: Result) -> list[tuple[int, Trial]]:
    """The kept trials with their place in ``trials``, in the order in which they were tried."""
    kept = [(index, trial) for index, trial in enumerate(result.trials) if trial.verdict is Verdict.KEPT]
    return sorted(kept, key=lambda item: item[1].id)


def trial_of(result: Result, strategy: str) -> tuple[int, Trial] | None:
    """The last kept trial that brought a strategy into the plan, alone or as a companion."""
    for index, trial in reversed(kept_trials(result)):
        if trial.strategy == strategy or any(companion.strategy == strategy for companion in trial.companions):
            return index, trial
    return None


def claim_of(quality: Quality | None) -> Claim:
    if quality is None or quality.method == "not_tested" or quality.passed is None:
        return "not_tested"
    if not quality.passed:
        return "lost"
    if quality.method == "losses":
        return "same_losses"
    difference, margin = quality.difference, quality.margin
    if quality.method == "metric" and difference is not None and margin is not None:
        return "equivalent" if max(abs(difference.low), abs(difference.high)) <= margin else "not_inferior"
    return "not_inferior"


def quality_view(result: Result) -> QualityView:
    """The weakest claim among the changes of the final plan."""
    if not result.best.plan.changes:
        return QualityView("nothing", _SHORT["nothing"], say("The baseline stands, so nothing about quality changes."))
    claims: list[tuple[Claim, str]] = []
    for change in result.best.plan.changes:
        found = trial_of(result, change.strategy)
        claims.append((claim_of(found[1].quality) if found else "not_tested", change.strategy))
    weakest = min((claim for claim, _ in claims), key=_ORDER.index)
    blame = next(strategy for claim, strategy in claims if claim == weakest)
    return QualityView(weakest, _SHORT[weakest], _detail(result, weakest, blame))


def _detail(result: Result, claim: Claim, strategy: str) -> Phrase:
    metric = name(result.objective.metric or "the metric", 60)
    found = trial_of(result, strategy)
    index, trial = found if found else (-1, None)
    quality = trial.quality if trial else None
    path = f"/trials/{index}/quality"
    if claim == "same_losses":
        return say("Every change gave the baseline's losses to rounding, on the same samples.")
    if claim == "lost":
        return say("{} did not pass its quality gate.", name(strategy, 60))
    if claim == "not_tested" or quality is None:
        return say("{} passed no quality gate; compare {} yourself before relying on it.", name(strategy, 60), metric)
    if quality.method == "metric" and quality.difference is not None and quality.margin is not None:
        difference = quality.difference
        return say(
            "{} differs by {} [{} to {}]; the tolerance allows {}.",
            metric,
            number(difference.value, plain, f"{path}/difference/value"),
            number(difference.low, plain, f"{path}/difference/low"),
            number(difference.high, plain, f"{path}/difference/high"),
            number(quality.margin, plain, f"{path}/margin"),
        )
    return say("The losses of {} stay within the tolerance; {} itself was not compared.", name(strategy, 60), metric)
