"""The verdict on changes of evaluation alone, and what is known of an evaluation's seconds under each. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoopt.records import Estimate, Quality, Verdict
from autoopt.records.evaluating import EvaluationPair, HeldEvaluations
from autoopt.search.accept.time_to_target import TrainedRatio
from autoopt.setup import Setup


@dataclass
class EvaluationRatios:
    """Measured ratios: seconds of an evaluation under a setup over one under another, by the evaluation's options."""

    _known: dict[str, float] = field(default_factory=dict)

    def measured(self, setup: Setup, over: Setup, ratio: float) -> None:
        """Notes what was measured.

        Args:
            setup, over: of the two evaluations.
            ratio: seconds of the first over those of the second.
        """
        self._known[_key(setup)] = ratio * self._known.get(_key(over), 1.0)

    def ratio(self, setup: Setup, over: Setup) -> float | None:
        """Of an evaluation under one setup over one under another; None where it was not measured."""
        keys = _key(setup), _key(over)
        if keys[0] == keys[1]:
            return 1.0
        found = [self._known.get(key, 1.0 if key == _OWN else None) for key in keys]
        return None if found[0] is None or found[1] is None else found[0] / found[1]


def _key(setup: Setup) -> str:
    return json.dumps(dict(setup.evaluation), sort_keys=True, default=str)


_OWN = _key(Setup())


ROUNDING = 1e-5
"""Relative difference of a metric that sums in float32 give it, added up in another order."""


@dataclass(frozen=True)
class EvaluationRuling:
    """The ruling on a change of evaluation alone.

    Args:
        verdict, reason: as a trial has them.
        quality: whether the metric is the same.
        ratio: speedup of the whole run; None where nothing was compared.
        evaluation_ratio: seconds of an evaluation of the candidate over one of the incumbent.
    """

    verdict: Verdict
    reason: str
    quality: Quality
    ratio: Estimate | None = None
    evaluation_ratio: float | None = None


def rule_on_evaluations(
    pairs: Sequence[EvaluationPair], share: float, min_gain: float, *, same_batches: bool
) -> EvaluationRuling:
    """The verdict on a setting of the evaluation's loader.

    Args:
        pairs: of processes, with the same weights.
        share: of the whole run, what evaluations take under the incumbent.
        min_gain: speedup worth having, less 1.
        same_batches: the setting leaves batches as they are, so that the same samples give the same metric.
    """
    failed = next((side.why for pair in pairs for side in (pair.incumbent, pair.candidate) if side.why), "")
    if failed or not pairs:
        return EvaluationRuling(Verdict.INCONCLUSIVE, failed or "nothing was measured", Quality(method="not_tested"))
    quality = _same_metric(pairs, same_batches=same_batches)
    logs = tuple(math.log(_seconds(pair.incumbent) / _seconds(pair.candidate)) for pair in pairs)
    each = TrainedRatio(logs, 0.0).estimate
    value, low, high = (1.0 / (1.0 - share + share / faster) for faster in (each.value, each.low, each.high))
    ratio = Estimate(value=value, low=low, high=high, n=len(pairs), confidence=each.confidence)
    before, after = (_mean([_seconds(side) for side in sides]) for sides in _sides(pairs))
    told = f"an evaluation takes {after:.3g} s where it took {before:.3g} s, {share:.0%} of the run"
    if quality.passed is not True:
        lost = quality.passed is False
        return EvaluationRuling(
            Verdict.QUALITY_LOST if lost else Verdict.INCONCLUSIVE, f"{quality.detail}; {told}", quality, ratio
        )
    verdict = Verdict.INCONCLUSIVE
    if ratio.low > 1.0 + min_gain:
        verdict = Verdict.KEPT
    elif ratio.high < 1.0 + min_gain:
        verdict = Verdict.HARMFUL if ratio.high < 1.0 else Verdict.NO_GAIN
    reason = f"{told}; {quality.detail}"
    return EvaluationRuling(verdict, reason, quality, ratio, 1.0 / each.value)


def _sides(pairs: Sequence[EvaluationPair]) -> tuple[list[HeldEvaluations], list[HeldEvaluations]]:
    return [pair.incumbent for pair in pairs], [pair.candidate for pair in pairs]


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _seconds(side: HeldEvaluations) -> float:
    """Seconds of an evaluation like most of a run: its first one starts what stays."""
    return max(statistics.fmean(side.seconds[1:] or side.seconds), 1e-9)


def _same_metric(pairs: Sequence[EvaluationPair], *, same_batches: bool) -> Quality:
    """Whether an evaluation counts the same samples and gives the same metric, to rounding."""
    for pair in pairs:
        before, after = pair.incumbent, pair.candidate
        if before.samples != after.samples:
            detail = f"evaluated on {after.samples} samples where the incumbent was evaluated on {before.samples}"
            return Quality(method="metric", passed=False, detail=detail)
    name = next((side.metric for side in _sides(pairs)[0] if side.metric), None)
    told = [(pair.incumbent, pair.candidate) for pair in pairs]
    values = [(b.value, a.value, _tolerance(b, a)) for b, a in told if b.value is not None and a.value is not None]
    if len(values) < len(pairs):
        if same_batches and pairs[0].incumbent.samples is not None:
            detail = f"the same {pairs[0].incumbent.samples} samples in the same batches"
            return Quality(method="metric", level="identical", passed=True, detail=detail)
        detail = "no metric was told by which other batches could be compared: name it with --metric"
        return Quality(method="not_tested", level="undecided", detail=detail)
    old, new, tolerance = max(values, key=lambda one: abs(one[0] - one[1]) - one[2])
    known = {"method": "metric", "metric": name, "baseline": old, "candidate": new, "margin": tolerance}
    if abs(old - new) <= tolerance:
        detail = f"{name} {new:.6g} as before, of the same samples and weights"
        level = "identical" if old == new else "equivalent"
        return Quality.model_validate({**known, "level": level, "passed": True, "detail": detail})
    detail = f"{name} is {new:.6g} where it was {old:.6g}, at the same weights"
    return Quality.model_validate({**known, "passed": False, "detail": detail})


def _tolerance(before: HeldEvaluations, after: HeldEvaluations) -> float:
    """How far two values may be apart by rounding: of sums, and of the decimals with which both are told."""
    size = max(abs(before.value or 0.0), abs(after.value or 0.0))
    digits = [side.digits for side in (before, after) if side.digits is not None]
    return max(ROUNDING * size, 1.01 * 10.0 ** -max(digits) if digits else 0.0)
