"""How much of the metric a variant loses, with an interval, from answers that are recorded once.

A metric that is the mean over samples is split: the user's ``evaluate`` is asked of each sample's recorded
answer, and the paired differences decide. For right or wrong that is the score interval of Tango, "Equivalence test and
confidence interval for the difference in proportions for the paired-sample design", 1998, which holds where nothing
differs, too. Any other metric is evaluated on resamples of the validation samples, the same ones for every variant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import repeat
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.stats import norm, t

from autoopt.benchmark.evaluation import checked_metrics
from autoopt.latency.serving.requests import Evaluate, Recorded, Recorder, cut, cut_to, samples_of
from autoopt.records import Estimate
from autoopt.records.latency import Judged

CONFIDENCE = 0.9
"""Of two-sided intervals, so that either end alone is passed with a chance of 5 %."""
RESAMPLES, FEWEST_RESAMPLES, SECONDS = 400, 60, 8.0
"""Their 5 % quantile is then the mean of twenty and more; at least three lie beyond it; and they take no longer."""


def judged(
    model: Any,
    evaluate: Evaluate,
    batches: Sequence[Any],
    metric: str,
    seed: int,
) -> Judged:
    """The metric of a model on validation batches, and what its interval needs."""
    recorder = Recorder(model).eval()
    with torch.no_grad():
        whole = checked_metrics(evaluate(recorder, batches), metric)[metric]
        samples = sum(samples_of(batch) for batch in batches)
        if len(recorder.calls) != len(batches):
            note = f"evaluate calls the model {len(recorder.calls)} times for {len(batches)} batches"
            return Judged(metric=whole, samples=samples, note=note)
        answers = [
            cut(answer, place, place + 1, samples_of(batch))
            for batch, answer in zip(batches, recorder.answers, strict=True)
            for place in range(samples_of(batch))
        ]
        singles = list(cut_to(batches, repeat(1), repeat(None)))
        each: list[float] = []
        with suppress(Exception):  # many a metric is not defined for one sample
            pairs = zip(singles, answers, strict=True)
            each = [float(evaluate(Recorded([answer]), [single])[metric]) for single, answer in pairs]
        if each and math.isclose(float(np.mean(each)), whole, rel_tol=1e-4, abs_tol=1e-6):
            return Judged(metric=whole, samples=samples, each=tuple(each))
        drawn = _resampled(evaluate, singles, answers, metric, seed)
    note = "" if drawn else "the metric of recorded answers does not come out, or takes too long to be resampled"
    return Judged(metric=whole, samples=samples, resampled=tuple(drawn), note=note)


def _resampled(evaluate: Evaluate, singles: list[Any], answers: list[Any], metric: str, seed: int) -> list[float]:
    rng, found, began = np.random.default_rng(seed), [], perf_counter()
    for count in range(RESAMPLES):
        places = rng.integers(len(singles), size=len(singles))
        try:
            value = evaluate(Recorded(answers[p] for p in places), [singles[p] for p in places])[metric]
        except Exception:
            return []
        found.append(float(value))
        spent = perf_counter() - began
        if spent > SECONDS and spent / (count + 1) * FEWEST_RESAMPLES > 4 * SECONDS:
            return []
        if spent > SECONDS and count + 1 >= FEWEST_RESAMPLES:
            break
    return found


def drop(baseline: Judged, variant: Judged, mode: Literal["max", "min"]) -> Estimate | None:
    """The loss of the baseline's metric, as a fraction of it; None where no interval can be had."""
    sign, scale = (1.0 if mode == "max" else -1.0), abs(baseline.metric)
    if scale == 0.0:
        return None
    if baseline.each and variant.each and len(baseline.each) == len(variant.each):
        one, two = np.array(baseline.each), np.array(variant.each)
        differences = sign * (one - two)
        lost, n = float(differences.mean()), len(differences)
        if set(np.unique(one)) | set(np.unique(two)) <= {0.0, 1.0}:
            low, high = paired_proportions(int((differences > 0).sum()), int((differences < 0).sum()), n)
        else:
            deviation = float(differences.std(ddof=1)) if n > 1 else math.inf
            room = float(t.ppf((1 + CONFIDENCE) / 2, max(n - 1, 1))) * deviation / math.sqrt(n)
            room = room or math.log(2 / (1 - CONFIDENCE)) / n * float(np.ptp(one))  # where nothing differs
            low, high = lost - room, lost + room
    else:
        count = min(len(baseline.resampled), len(variant.resampled))
        if not count:
            return None
        one, two = np.array(baseline.resampled[:count]), np.array(variant.resampled[:count])
        lost = sign * (baseline.metric - variant.metric)
        low, high = np.quantile(sign * (one - two), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        if low == high:  # nothing differs here; up to three samples of as many may
            room = 9.0 * float(one.std()) / math.sqrt(baseline.samples)
            low, high = low - room, high + room
    low, high = min(low, lost), max(high, lost)
    return Estimate(
        value=lost / scale, low=low / scale, high=high / scale, confidence=CONFIDENCE, n=baseline.samples
    )  # fmt: skip


def paired_proportions(lost: int, won: int, n: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Tango's score interval of the share lost less the share won, which one side alone has right, of n samples."""
    z, estimate = float(norm.ppf((1 + confidence) / 2)), (lost - won) / n

    def score(delta: float) -> float:
        b = -lost - won + (2 * n - lost + won) * delta
        c = -won * delta * (1 - delta)
        share = (math.sqrt(max(b * b - 8 * n * c, 0.0)) - b) / (4 * n)
        variance = n * (2 * share + delta * (1 - delta))
        return (lost - won - n * delta) / math.sqrt(max(variance, 1e-12))

    edge = 1e-9
    low = -1.0 if score(-1 + edge) <= z else float(brentq(lambda d: score(d) - z, -1 + edge, estimate))
    high = 1.0 if score(1 - edge) >= -z else float(brentq(lambda d: score(d) + z, estimate, 1 - edge))
    return low, high
