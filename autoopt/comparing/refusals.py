"""Why a measurement that went through is not believed, if it is not."""

from __future__ import annotations

from autoopt.comparing.learning import Judge
from autoopt.comparing.watched import SideSeconds
from autoopt.records.comparing import Learning
from autoopt.search.compare.comparison import Comparison

_COUNTED, _OUTSIDE, _CEILING = 0.02, 1.5, 0.8
"""How far counts, the two ratios, and a step and its ceiling may lie apart by error of measurement. The count of the
trainings is exact; in blocks, an epoch's last and smaller batch may fall into one side's alone."""


def refusal(found: Comparison | None, learning: Learning, judge: Judge | None, ceiling: float | None) -> str | None:
    """A sentence where the candidate is refused.

    Args:
        found: the throughput of both.
        learning: the level of quality.
        judge: which trained both.
        ceiling: seconds that a step's operations take at the best of the machine's measured peaks, where known.
    """
    if judge is not None and judge.evaluating.tampered:
        return judge.evaluating.tampered
    if found is None or found.estimate is None or judge is None:
        return None
    if learning.level != "undecided":
        counted = _counted(found, judge)
        if counted:
            return counted
    step = step_seconds(found, "candidate")
    if ceiling is not None and step is not None and step < _CEILING * ceiling:
        return (
            f"a step takes {1e3 * step:.3g} ms, and the baseline's operations take {1e3 * ceiling:.3g} ms at "
            "the highest rate that this machine was measured to reach"
        )
    outside = judge.ratio()
    if outside is not None and found.estimate.low > _OUTSIDE * max(outside, 1.0):
        return (
            f"its blocks say {found.estimate.value:.2f}x, the same steps in trainings whose weights were checked "
            f"at most {outside:.2f}x"
        )
    return None


def _counted(found: Comparison, judge: Judge) -> str:
    """A sentence where the candidate counts other samples than those that led to the same weights."""
    one, two = judge.trained["baseline"].samples, judge.trained["candidate"].samples
    if one and two and one[0] != two[0]:
        return f"it counts {two[0]} samples where the baseline came to the same weights with {one[0]}"
    before, after, rate = (
        found.incumbent.per_step,
        found.candidate.per_step,
        found.candidate.rate,
    )
    if not before or not after:
        return ""
    steps = found.candidate.seconds * (rate or 0.0) / after
    if abs(after / before - 1) > max(_COUNTED, 2 / steps if steps else 0.0):
        return f"it counts {after:g} samples a step where {before:g} lead to the same weights"
    return ""


def changed_sources(name: str, before: dict[str, str], now: dict[str, str]) -> str:
    """A sentence where a side's files are not those that were fixed before the seed was drawn; empty where they are."""
    files = sorted(file for file in {*before, *now} if before.get(file) != now.get(file))
    return f"the {name}'s {files[0]} was changed while it was compared" if files else ""


def whole_ratio(watches: dict[str, SideSeconds]) -> float | None:
    """Candidate over baseline of all samples over all seconds: what is rare and long counts in it."""
    one, two = watches["baseline"].rate, watches["candidate"].rate
    return two / one if one and two else None


def step_seconds(found: Comparison, name: str) -> float | None:
    """Seconds of a step; the candidate's follows from the baseline's and the paired ratio."""
    one = found.incumbent
    each = one.per_step if name == "baseline" else found.candidate.per_step
    if not one.rate or not each or found.estimate is None:
        return None
    return each / (one.rate * (1.0 if name == "baseline" else found.estimate.value))


def rate_of(found: Comparison | None, name: str) -> float | None:
    """Samples per second; the candidate's by the paired ratio, so that the two agree with the speedup."""
    if found is None or found.incumbent.samples_per_second is None or found.estimate is None:
        return None
    return found.incumbent.samples_per_second * (1.0 if name == "baseline" else found.estimate.value)
