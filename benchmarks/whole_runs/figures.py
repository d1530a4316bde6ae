"""Figures of a judgement: ratios of whole runs paired by round, the score, and whether the run's claim holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from scipy.stats import t as student

from benchmarks.whole_runs.cases import Case

UNTOUCHED, PATCHED, EXPERT = "untouched", "patched", "expert"
CLAIM_MARGIN = 0.10
"""A claim holds where it lies within this share of what whole runs show; asked for by the benchmark's goal."""

Estimate = dict[str, Any]


def logarithms(runs: Sequence[dict[str, Any]], side: str) -> list[float]:
    """log(untouched / side) of each round in which both came to their end."""
    seconds: dict[int, dict[str, float]] = {}
    for run in runs:
        if run.get("error") is None:
            seconds.setdefault(run["round"], {})[run["side"]] = run["seconds"]
    both = (found for found in seconds.values() if UNTOUCHED in found and side in found)
    return [math.log(found[UNTOUCHED] / found[side]) for found in both]


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


def quality(case: Case, runs: Sequence[dict[str, Any]], side: str) -> dict[str, Any] | None:
    """The mean over the rounds of how much worse a side's metric is, and whether that is within the tolerance."""
    metrics: dict[int, dict[str, float]] = {}
    for run in runs:
        if run.get("metric") is not None:
            metrics.setdefault(run["round"], {})[run["side"]] = run["metric"]
    worse = [case.worse(one[UNTOUCHED], one[side]) for one in metrics.values() if UNTOUCHED in one and side in one]
    if not worse:
        return None
    mean = statistics.fmean(worse)
    return {"worse": mean, "tolerance": case.tolerance, "within": mean <= case.tolerance, "n": len(worse)}


def claim_holds(claimed: float | None, shown: Estimate | None) -> bool | None:
    """Whether the claim lies within CLAIM_MARGIN of the whole runs' ratio; None where either is missing."""
    if claimed is None or shown is None:
        return None
    return abs(claimed / shown["value"] - 1) <= CLAIM_MARGIN


def summary(case: Case, runs: Sequence[dict[str, Any]], claim: dict[str, Any] | None, empty: bool) -> dict[str, Any]:
    """All figures of a judgement.

    Args:
        claim: what the search's result says of the whole run; None without a search.
        empty: whether the patch holds nothing, so that the patched script is the untouched one and its score is 0.
    """
    expert = logarithms(runs, EXPERT)
    patched = [0.0] * len(expert) if empty else logarithms(runs, PATCHED)
    failed = {run["side"]: run["error"] for run in runs if run.get("error") is not None}
    sides = [side for side in (PATCHED, EXPERT) if any(run["side"] == side for run in runs)]
    good = {side: quality(case, runs, side) for side in sides}
    lost = [side for side, found in good.items() if found is not None and not found["within"]]
    shown = ratio(patched)
    faults = [*(f"{side}: {error}" for side, error in failed.items()), *(f"{side}: metric lost" for side in lost)]
    return {
        "speedup": {PATCHED: shown, EXPERT: ratio(expert)},
        "quality": good,
        "score": None if faults else score(patched, expert),
        "no_score": "; ".join(faults) or None,
        "claim": claim,
        "claim_holds": claim_holds(claim["value"] if claim else None, shown),
    }


def _quantile(number: int) -> float:
    return float(student.ppf(0.975, number - 1))


def _estimate(value: float, low: float | None, high: float | None, number: int) -> Estimate:
    return {"value": value, "low": low, "high": high, "confidence": 0.95, "n": number}
