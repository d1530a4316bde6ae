"""Claims on the quality of the final plan, from the gates that its changes passed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autoopt.records import Configuration, Quality, Result, Trial, Verdict
from autoopt_reports.view.text import LONGEST_SENTENCES, Number, Phrase, name, number, numbers, say
from autoopt_reports.view.units import Formatter, count, plain

Claim = str
"""A key of :data:`SHORT`."""
Mode = Literal["max", "min"]

# From the weakest claim to the strongest: a plan may claim what the weakest of its changes may.
SHORT: dict[Claim, str] = {
    "lost": "quality lost",
    "not_tested": "quality not tested",
    "undecided": "quality undecided",
    "same_path": "losses within the tolerance",
    "reached": "same target reached",
    "not_inferior": "quality no worse",
    "equivalent": "same quality",
    "rounding": "equivalent training",
    "same_losses": "same losses",
    "identical": "identical training",
    "nothing": "unchanged",
}
# ``trained`` is described by what its trainings showed, as documents without a level are.
_BY_LEVEL: dict[str | None, Claim] = {"identical": "identical", "equivalent": "rounding", "undecided": "undecided"}


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


def claim_of(quality: Quality | None, mode: Mode = "max") -> Claim:
    """Claim that one gate allows. A difference is candidate less baseline; ``mode`` shows which way is worse.

    A metric whose interval reaches beyond the tolerance shows nothing, whatever the gate decided: undecided.
    """
    if quality is None:
        return "not_tested"
    if quality.passed is False:
        return "lost"
    by_level = _BY_LEVEL.get(quality.level)
    if by_level is not None:
        return by_level
    if quality.method == "not_tested" or quality.passed is None:
        return "not_tested"
    if quality.method == "losses":
        return "same_losses"
    if quality.method == "loss_path":
        return "same_path"
    difference, margin = quality.difference, quality.margin
    if difference is None or margin is None:
        return "reached"
    worst = difference.low if mode == "max" else -difference.high
    if worst < -margin:
        return "undecided"
    return "equivalent" if max(abs(difference.low), abs(difference.high)) <= margin else "not_inferior"


def quality_view(result: Result) -> QualityView:
    """Claim on the final plan: by the test of the whole plan, else by its weakest change."""
    if not result.found:
        return QualityView("nothing", SHORT["nothing"], say("The baseline stands, so nothing about quality changes."))
    mode = result.objective.mode
    claims: list[tuple[Claim, Quality | None, str, str]] = []
    for change in result.found:
        found = trial_of(result, change.strategy)
        quality = found[1].quality if found else None
        at = f"/trials/{found[0]}/quality" if found else ""
        claims.append((claim_of(quality, mode), quality, at, change.strategy))
    claim, quality, path, strategy = min(claims, key=lambda item: [*SHORT].index(item[0]))
    whole = result.quality
    # A metric of the whole plan says less than the same losses of each change, unless it says that one was lost.
    more = whole is not None and (claim not in ("identical", "same_losses") or whole.passed is False)
    if whole is not None and (whole.level or (whole.method != "not_tested" and more)):
        claim = "undecided" if whole.passed is None else claim_of(whole, mode)
        quality, path, strategy = whole, "/quality", "The final plan"
    return QualityView(claim, SHORT[claim], _detail(result, claim, quality, path, strategy))


def metric_phrase(result: Result) -> Phrase | None:
    """The metric of the final plan and of the baseline, with the interval of their difference; None without one."""
    if not result.found or result.objective.metric is None:
        return None
    metric, quality = name(result.objective.metric, 60), result.quality
    pair = metric_pair(result)
    if pair is None:
        return say("{} of the final plan was not compared with the baseline's.", metric)
    before, after = pair
    if _ends_at_target(result) and (quality is None or quality.candidate is None):
        return say("Each run ends at the target: {} {} against {} in the last pair.", metric, after, before)
    if quality is None or quality.difference is None or quality.candidate is None:
        return say("{} {} against {}; their difference has no interval.", metric, after, before)
    text = say("{} {} against {}: a difference of {}", metric, after, before, _interval(quality, "/quality"))
    if quality.seeds is not None:
        words = " over {} seed" if quality.seeds == 1 else " over {} seeds"
        text = text + say(words, number(quality.seeds, count, "/quality/seeds"))
    difference, margin = quality.difference, quality.margin
    worst = difference.low if result.objective.mode == "max" else -difference.high
    passed = quality.level in _BY_LEVEL and quality.passed is True
    if margin is not None and worst < -margin and passed:  # the metric shows nothing by itself
        words = ", wider than the tolerance of {}: the probe shows that nothing is lost, the metric does not"
        text += say(words, number(margin, plain, "/quality/margin"))
    return text + "."


def both(result: Result, form: Formatter, field: str, inner: str = "") -> tuple[Number, ...]:
    """A field of the baseline and of the final plan; ``inner``: the part of it that is shown."""
    sides = []
    for side in ("baseline", "best"):
        held, at = getattr(getattr(result, side), field), f"/{side}/{field}"
        if held is not None and inner:
            held, at = getattr(held, inner), f"{at}/{inner}"
        sides.append(number(held, form, at))
    return tuple(sides)


def metric_pair(result: Result) -> tuple[Number, ...] | None:
    """The metric of the baseline and of the final plan, both read after the same training; None without such readings.

    The last evaluations of two trainings are such readings where both came to the target, and none where one of them
    was only trained further than the other.
    """
    quality = result.quality
    if quality is not None and quality.baseline is not None and quality.candidate is not None:
        return numbers(quality, "/quality", plain, "baseline", "candidate")
    before, after = _last_of_each_step(result.baseline), _last_of_each_step(result.best)
    common = before.keys() & after.keys()
    trained = all(any(run.reached for run in side.curves) for side in (result.baseline, result.best))
    ended = trained or _ends_at_target(result)
    if common and not ended:
        (b_value, b_path), (a_value, a_path) = before[max(common)], after[max(common)]
        return number(b_value, plain, f"/baseline/{b_path}"), number(a_value, plain, f"/best/{a_path}")
    if result.baseline.metric is None or result.best.metric is None:
        return None
    if not ended and (before or after):
        return None
    return both(result, plain, "metric")


def _ends_at_target(result: Result) -> bool:
    """Whether the comparison is of whole runs, each of which ended once it had come to the target."""
    headline = result.speedup.headline
    return headline is not None and headline.whole and headline.kind == "to_target" and not headline.target_missed


def _last_of_each_step(measured: Configuration) -> dict[int, tuple[float, str]]:
    """By step, the metric of the last training that was evaluated there, and where it stands."""
    return {
        point.step: (point.metric, f"curves/{curve}/points/{index}/metric")
        for curve, run in enumerate(measured.curves)
        for index, point in enumerate(run.points)
        if point.metric is not None
    }


def _detail(result: Result, claim: Claim, quality: Quality | None, path: str, who: str) -> Phrase:
    metric = name(result.objective.metric or "the metric", 60)
    subject = name(who, 60) if path != "/quality" else who
    if claim == "same_losses":
        return say("Every change gave the baseline's losses to rounding.")
    if claim == "identical" and quality is not None:
        return say("{} is the same training", subject) + _because(quality)
    if claim == "rounding" and quality is not None:
        return say("{} is an equivalent training, shown by gradients and updates", subject) + _because(quality)
    if claim == "not_tested" or quality is None:
        return say("{} passed no quality gate; compare {} yourself before relying on it.", subject, metric)
    if quality.difference is not None and quality.margin is not None:
        shown = _interval(quality, path), number(quality.margin, plain, f"{path}/margin")
        text = say("{} differs by {}; the tolerance allows {}", metric, *shown)
        if quality.seeds is not None:
            text += say(", seeds: {}", number(quality.seeds, count, f"{path}/seeds"))
        return text + (", and the interval reaches beyond it." if claim == "undecided" else ".")
    if claim == "lost":
        return say("{} did not pass its quality gate", subject) + _because(quality)
    if claim == "same_path":
        return say("The losses of {} stay within the tolerance; {} itself was not compared.", subject, metric)
    if claim == "undecided":
        return say("{} cannot be distinguished from the noise of {}", subject, metric) + _because(quality)
    return say("{} reaches the same target", subject) + _because(quality)


def _because(quality: Quality) -> Phrase:
    return say(": {}", name(quality.detail, LONGEST_SENTENCES)) if quality.detail else say(".")


def _interval(quality: Quality, path: str) -> Phrase:
    """The difference of the metric, in its unit, with its bounds."""
    return say("{} [{} to {}]", *numbers(quality.difference, f"{path}/difference", plain, "value", "low", "high"))
