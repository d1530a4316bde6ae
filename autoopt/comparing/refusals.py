"""Why a measurement that went through is not believed, if it is not."""

from __future__ import annotations

from collections.abc import Sequence

from autoopt.comparing.learning import DRIFTED, SAME
from autoopt.records import Estimate
from autoopt.records.account import Row
from autoopt.records.comparing import Learning
from autoopt.search.compare.comparison import Comparison


def unbelieved(speed: Estimate, learning: Learning, least: float) -> tuple[bool, str] | None:
    """Whether a candidate is refused that looks faster than ``least``, or left undecided, and a sentence; else None.

    A side that leaves out a share of its steps, or does other work in them, moves its weights at least that share
    apart. What would have to be left out for the claim to be false is the share ``1 - least / low``.
    """
    apart, share = learning.measured_apart, 1.0 - least / speed.low
    exact = learning.level == "identical"
    if apart is None:
        return False, "its measured steps cannot be checked: the baseline's moved no weight"
    told = f"the steps that it was measured in moved the weights {apart:.2g} of the way apart from the baseline's"
    if apart <= (learning.again or 0.0) * 2 or apart <= (SAME if exact else share / 2):
        return None
    if apart >= max(1.0 - least / speed.value, SAME if exact else DRIFTED):
        return True, f"{told}: left out steps would explain its speed"
    return False, f"{told}, more than in its training from a seed of the judge's"


def changed_sources(name: str, before: dict[str, str], now: dict[str, str]) -> str:
    """A sentence where a side's files are not those that were fixed before the seed was drawn; empty where they are."""
    files = sorted(file for file in {*before, *now} if before.get(file) != now.get(file))
    return f"the {name}'s {files[0]} was changed while it was compared" if files else ""


def whole_ratio(rows: Sequence[Row]) -> float | None:
    """Candidate over baseline of all steps over all seconds: what is rare and long counts in it."""
    rates = []
    for name in ("baseline/", "candidate/"):
        own = [row for row in rows if row.process.startswith(name)]
        seconds = sum(row.seconds for row in own)
        rates.append(sum(row.steps for row in own) / seconds if seconds else 0.0)
    return rates[1] / rates[0] if all(rates) else None


def step_seconds(found: Comparison, name: str) -> float | None:
    """Seconds of a step; the candidate's follows from the baseline's and the paired ratio."""
    one = found.incumbent
    if not one.steps_per_second or found.estimate is None:
        return None
    return 1.0 / (one.steps_per_second * (1.0 if name == "baseline" else found.estimate.value))


def rate_of(found: Comparison | None, name: str) -> float | None:
    """Samples per second; the candidate's by the paired ratio, so that the two agree with the speedup."""
    if found is None or found.incumbent.samples_per_second is None or found.estimate is None:
        return None
    return found.incumbent.samples_per_second * (1.0 if name == "baseline" else found.estimate.value)
