"""Prediction against result for every strategy tried, misses included."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

from autoopt.records import Estimate, EstimateKind, Result
from autoopt_reports.view import units
from autoopt_reports.view.text import Interval, Name, Number, Phrase, change_name, interval, say


@dataclass(frozen=True, slots=True)
class PredictionRow:
    trial: int
    place: int
    label: Name
    verdict: str
    predicted: Interval
    realized: Interval
    held: bool
    miss: Number


@dataclass(frozen=True, slots=True)
class Predictions:
    headline: Phrase
    rows: tuple[PredictionRow, ...]


def held(predicted: tuple[float, float], realized: tuple[float, float]) -> bool:
    """Whether the two intervals touch: the result does not contradict the prediction."""
    return predicted[0] <= realized[1] and realized[0] <= predicted[1]


def shown_bounds(predicted: Estimate) -> tuple[float, float]:
    """The interval of a prediction as the reader sees it: of a declared one, its value alone."""
    if predicted.kind is EstimateKind.DECLARED:
        return predicted.value, predicted.value
    return predicted.low, predicted.high


def miss(predicted: float, realized: float) -> float:
    """How far the result lies from the prediction, as a factor less one; never negative."""
    return math.exp(abs(math.log(realized / predicted))) - 1


def predictions_view(result: Result) -> Predictions | None:
    rows = []
    for index, trial in enumerate(result.trials):
        p, r = trial.predicted, trial.throughput
        if p is None or r is None or p.kind is EstimateKind.BOUND or min(p.value, r.value) <= 0:
            continue  # a bound predicts nothing that could be held against it
        predicted, realized = interval(p, f"/trials/{index}/predicted"), interval(r, f"/trials/{index}/throughput")
        assert predicted is not None
        assert realized is not None
        value = miss(p.value, r.value)
        rows.append(
            PredictionRow(
                trial.id,
                index,
                change_name(trial.strategy, trial.setting, trial.companions, 80),
                trial.verdict.value,
                predicted,
                realized,
                held(shown_bounds(p), (r.low, r.high)),
                Number(
                    units.percent(value),
                    value,
                    (f"/trials/{index}/predicted/value", f"/trials/{index}/throughput/value"),
                    "miss",
                ),
            )
        )
    if not rows:
        return None
    good = sum(row.held for row in rows)
    middle = median(row.miss.value or 0.0 for row in rows)
    text = say(
        "{} of {} predictions agree with their result; the median miss is {}",
        Number(units.count(good), good, ("/trials",), "count_held"),
        Number(units.count(len(rows)), len(rows), ("/trials",), "count_predicted"),
        Number(units.percent(middle), middle, ("/trials",), "median_miss"),
    )
    return Predictions(text, tuple(rows))
