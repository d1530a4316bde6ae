"""Figures of a judgement: ratios of whole runs paired by round, the score, and whether the run's claim holds."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Collection, Sequence
from typing import Any

from scipy.stats import t as student

from benchmarks.whole_runs.cases import Case

UNTOUCHED, PATCHED, EXPERT = "untouched", "patched", "expert"
CLAIM_MARGIN = 0.10
"""A claim holds where it lies within this share of what whole runs show; asked for by the benchmark's goal."""

Estimate = dict[str, Any]
Run = dict[str, Any]


def logarithms(
    runs: Sequence[Run], side: str, of: Callable[[Run], float | None] = operator.itemgetter("seconds")
) -> list[float]:
    """log(untouched / side) of each round in which both came to their end and have the quantity."""
    found: dict[int, dict[str, float]] = {}
    for run in runs:
        value = of(run) if run.get("error") is None else None
        if value is not None:
            found.setdefault(run["round"], {})[run["side"]] = value
    both = (one for one in found.values() if UNTOUCHED in one and side in one)
    return [math.log(one[UNTOUCHED] / one[side]) for one in both]


def without_start(run: Run) -> float | None:
    """Seconds after the first step."""
    first = run.get("first_seconds")
    return None if first is None else float(run["seconds"] - first)


def seconds_a_sample(run: Run) -> float | None:
    """What exact and numeric changes make less."""
    samples = run.get("samples")
    return None if not samples else float(run["seconds"] / samples)


def samples_needed(run: Run) -> float | None:
    """What algorithmic changes make less, where a run ends at its target."""
    samples = run.get("samples")
    return None if not samples else float(samples)


def ratio(logs: Sequence[float]) -> Estimate | None:
    """The mean speedup with Student's 95 % interval; one round has no interval, and none no figure."""
    if not logs:
        return None
    mean, number = statistics.fmean(logs), len(logs)
    if number == 1:
        return _estimate(math.exp(mean), None, None, 1)
    half = _quantile(number) * statistics.stdev(logs) / math.sqrt(number)
    return _estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half), number)


def score(patched: Sequence[float], expert: Sequence[float]) -> Estimate | None:
    """The ratio of the mean logarithms with Fieller's 95 % interval, rounds paired.

    The bounds are None for one round, and where the expert's own gain is not told from 1: the interval is unbounded.
    """
    if not expert or len(patched) != len(expert):
        return None
    p, e, number = statistics.fmean(patched), statistics.fmean(expert), len(expert)
    if e <= 0:
        return None
    if number == 1:
        return _estimate(p / e, None, None, 1)
    factor = _quantile(number) ** 2 / number
    a = e * e - factor * statistics.variance(expert)
    b = p * e - factor * statistics.covariance(patched, expert)
    c = p * p - factor * statistics.variance(patched)
    root = b * b - a * c
    if a <= 0 or root < 0:
        return _estimate(p / e, None, None, number)
    return _estimate(p / e, (b - math.sqrt(root)) / a, (b + math.sqrt(root)) / a, number)


def quality(case: Case, runs: Sequence[Run], side: str) -> dict[str, Any] | None:
    """The mean over the rounds of how much worse a side's metric is, and whether that is within the tolerance.

    A mean beyond it counts where it is told from chance: rounding alone moves the end of a training, either way. A
    target is reached or missed.
    """
    metrics: dict[int, dict[str, float]] = {}
    for run in runs:
        if run.get("metric") is not None:
            metrics.setdefault(run["round"], {})[run["side"]] = run["metric"]
    worse = [case.worse(one[UNTOUCHED], one[side]) for one in metrics.values() if UNTOUCHED in one and side in one]
    if not worse:
        return None
    mean, number = statistics.fmean(worse), len(worse)
    chance = _quantile(number) * statistics.stdev(worse) / math.sqrt(number) if number > 1 and not case.target else 0.0
    within = mean <= max(case.tolerance, chance)
    return {"worse": mean, "chance": chance, "tolerance": case.tolerance, "within": within, "n": number}


def claim_holds(claimed: float | None, shown: Estimate | None) -> bool | None:
    """Whether the claim lies within CLAIM_MARGIN of the whole runs' ratio; None where either is missing."""
    if claimed is None or shown is None:
        return None
    return abs(claimed / shown["value"] - 1) <= CLAIM_MARGIN


def summary(
    case: Case, runs: Sequence[Run], claim: dict[str, Any] | None = None, empty: Collection[str] = ()
) -> dict[str, Any]:
    """All figures of a judgement.

    Args:
        claim: what the search's result says of the whole run; None without a search.
        empty: sides that are the untouched script, as nothing was found: they are not run, and their score is 0.
    """
    expert = logarithms(runs, EXPERT)
    rounds = len({run["round"] for run in runs if run["side"] == UNTOUCHED and run.get("error") is None})
    faults = {side: _fault(case, runs, side) for side in {run["side"] for run in runs}}
    common = [f"{side}: {faults[side]}" for side in (UNTOUCHED, EXPERT) if faults.get(side)]
    sides = {}
    for side in sorted({*faults, *empty} - {UNTOUCHED}):
        logs = [0.0] * rounds if side in empty else logarithms(runs, side)
        own = [f"{side}: {faults[side]}"] if side not in (UNTOUCHED, EXPERT) and faults.get(side) else []
        sides[side] = {
            "speedup": ratio(logs),
            "without_start": ratio(logarithms(runs, side, without_start)),
            "exact": ratio(logarithms(runs, side, seconds_a_sample)),
            "algorithmic": ratio(logarithms(runs, side, samples_needed)),
            "quality": quality(case, runs, side),
            "score": None if common or own else score(logs, expert),
            "no_score": "; ".join([*own, *common]) or None,
            "logs": None if common or own else logs,
        }
    shown = sides.get(PATCHED, {}).get("speedup")
    return {"sides": sides, "claim": claim, "claim_holds": claim_holds(claim["value"] if claim else None, shown)}


def _fault(case: Case, runs: Sequence[Run], side: str) -> str | None:
    error = next((run["error"] for run in runs if run["side"] == side and run.get("error") is not None), None)
    found = quality(case, runs, side)
    lost = "metric lost" if case.target is None else "target missed"
    return error or (lost if found is not None and not found["within"] else None)


def _quantile(number: int) -> float:
    return float(student.ppf(0.975, number - 1))


def _estimate(value: float, low: float | None, high: float | None, number: int) -> Estimate:
    return {"value": value, "low": low, "high": high, "confidence": 0.95, "n": number}
