"""The answer of a comparison, and whether what was required holds: undecided is never a pass."""

from __future__ import annotations

from math import sqrt

from autoopt.comparing.learning import DRIFTED, SAME
from autoopt.records import Estimate
from autoopt.records.comparing import Answer, Compared, Learning
from autoopt.search.compare.comparison import Comparison

LITTLE = 0.01
"""Both within one per cent of each other are called the same speed."""


def answer_of(document: Compared, found: Comparison | None, failure: str | None, refusal: str | None) -> Compared:
    """The document with its answer, its reason, and whether the requirement holds."""
    answer, reason = _answer(document, found, failure, refusal)
    wanted = document.requirement
    if wanted is not None:
        passing: tuple[Answer, ...] = ("faster",) if wanted.kind == "faster" else ("faster", "not_slower")
        wanted = wanted.model_copy(update={"holds": answer in passing})
    return document.model_copy(update={"answer": answer, "reason": reason, "requirement": wanted})


def _answer(
    document: Compared, found: Comparison | None, failure: str | None, refusal: str | None
) -> tuple[Answer, str]:
    if failure is not None:
        return "failed", str(failure)
    if refusal:
        return "refused", f"the candidate's speed is not believed: {refusal}"
    speed = document.throughput
    if speed is None:
        return "undecided", found.reason if found else "nothing could be measured in the time"
    answer, reason = _speed(document, speed)
    control = document.control
    if control is not None and not control.low <= 1.0 <= control.high:
        again = f"the baseline against itself reads {control.text()}: this machine cannot tell just now"
        return "undecided", f"{reason}; but {again}"
    if answer not in ("faster", "not_slower", "no_difference"):
        return answer, reason
    if document.learning.level == "undecided":
        return "undecided", f"{reason}; but that it trains the same is not shown: {document.learning.detail}"
    if answer == "no_difference":
        return answer, reason
    least = 1.0 - (document.requirement.margin if document.requirement and answer == "not_slower" else 0.0)
    doubt = unbelieved(speed, document.learning, least)
    if doubt is not None:
        return (
            ("refused", f"the candidate's speed is not believed: {doubt[1]}")
            if doubt[0]
            else ("undecided", f"{reason}; but {doubt[1]}")
        )
    if document.whole is not None and document.whole < sqrt(least * max(speed.low, least)):
        seldom = f"all of its seconds together {document.whole:.2f}x: what is rare, or outside of blocks, counts"
        return "undecided", f"{reason}; but {seldom}"
    return answer, reason


def _speed(document: Compared, speed: Estimate) -> tuple[Answer, str]:
    """By both ratios where there are two: a step that is faster may not pay for a start that is longer."""
    ratios = {"a step": speed, **({"the planned run": document.planned_run} if document.planned_run else {})}
    low, high = min(each.low for each in ratios.values()), min(each.high for each in ratios.values())
    text = ", ".join(f"{name} {each.text()}" for name, each in ratios.items())
    if low > 1.0:
        return "faster", text
    if high < 1.0 and not (document.requirement and low >= 1.0 - document.requirement.margin):
        return "slower", text
    margin = document.requirement.margin if document.requirement else 0.0
    if document.requirement and document.requirement.kind == "not-slower" and low >= 1.0 - margin:
        return "not_slower", text
    if low >= 1.0 - LITTLE and max(each.high for each in ratios.values()) <= 1.0 + LITTLE:
        return "no_difference", text
    return "undecided", f"{text}: the interval leaves both open"


def unbelieved(speed: Estimate, learning: Learning, least: float) -> tuple[bool, str] | None:
    """Whether a candidate is refused that looks faster than ``least``, or left undecided, and a sentence; else None.

    A side that leaves out a share of its steps, or does other work in them, moves its weights at least that share
    apart. What would have to be left out for the claim to be false is the share ``1 - least / low``.
    """
    apart, share = learning.measured_apart, 1.0 - least / speed.low
    exact = learning.level == "identical"
    if apart is None:
        return False, "its measured steps cannot be checked: the baseline's moved no weight"
    text = f"the steps that it was measured in moved the weights {apart:.2g} of the way apart from the baseline's"
    if apart <= (learning.again or 0.0) * 2 or apart <= (SAME if exact else share / 2):
        return None
    if apart >= max(1.0 - least / speed.value, SAME if exact else DRIFTED):
        return True, f"{text}: left out steps would explain its speed"
    return False, f"{text}, more than in its training from a seed of the judge's"


def changed_sources(name: str, before: dict[str, str], now: dict[str, str]) -> str:
    """A sentence where a side's files are not those that were fixed before the seed was drawn; empty where they are."""
    files = sorted(file for file in {*before, *now} if before.get(file) != now.get(file))
    return f"the {name}'s {files[0]} was changed while it was compared" if files else ""
