"""Evaluations or checkpoints of a trial's process at the weights that it had at first, to be timed and compared."""

from __future__ import annotations

from autoopt.records.record import Record


class HeldEvaluations(Record):
    """Evaluations at one set of weights, or checkpoints of it, whose metric is whether they read as what was saved.

    ``seconds``: of each, the first of which starts what stays. ``samples``: that one reads; None where they were not
    counted. ``value``, ``metric``: its metric and the metric's name; None where none was reported. ``digits``: decimals
    with which a script reports it; None where it comes as a number. ``why``: why there is nothing to compare.
    """

    seconds: tuple[float, ...] = ()
    samples: int | None = None
    metric: str | None = None
    value: float | None = None
    digits: int | None = None
    why: str = ""


class EvaluationPair(Record):
    """Those of the incumbent and of a candidate in processes that ran one after the other."""

    incumbent: HeldEvaluations
    candidate: HeldEvaluations
