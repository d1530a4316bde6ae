"""Metrics that models of several sizes learnt, and the power laws fitted to them."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import Estimate
from autoopt.records.record import JsonDict, Record


class SizeRun(Record):
    """One training. ``metric``: after the steps that all trainings had; ``seconds``: to the target, where reached."""

    seed: int
    metric: float | None = None
    seconds: float | None = None
    reached: bool | None = None


class ModelSizePoint(Record):
    """A size that was trained. ``arguments``: of ``build``; ``trial``: its number, None for the model as it is.

    ``parameters``: those that are trained.
    """

    arguments: JsonDict = field(default_factory=dict)
    trial: int | None = None
    parameters: int
    runs: tuple[SizeRun, ...] = ()


class FittedAt(Record):
    """The line at a size, and the bounds of its mean there, of the same confidence as the exponent's."""

    parameters: float
    value: float
    low: float
    high: float


class PowerLaw(Record):
    """``value = constant * parameters ** exponent``: a line through logarithms, by least squares.

    ``of``: ``error`` is one less the metric, or the metric itself where less of it is better; ``seconds`` are those to
    the target. ``exponent.n``, ``runs``, ``sizes``: the observations that the bounds rest on, all trainings, and the
    sizes that they were of; ``by_size``: the observations are means of sizes, since these are farther from a line than
    trainings of one size from each other. ``standard_error``: of the exponent; ``scatter``: standard deviation of the
    logarithm about the line. ``at_target``: parameters at which the line meets the target, of ``error`` alone; None
    where ``note`` says why.
    """

    of: Literal["error", "seconds"]
    exponent: Estimate
    standard_error: float
    scatter: float
    runs: int
    sizes: int
    by_size: bool = False
    line: tuple[FittedAt, ...] = ()
    at_target: Estimate | None = None
    note: str = ""


class ModelScaling(Record):
    """The sizes that were trained next to each other, the smallest first.

    ``steps``: after which the metrics are compared. ``error``, ``seconds``: None where fewer than three sizes tell, or
    a power law cannot be fitted; ``missing`` says why, by their names.
    """

    metric: str | None = None
    mode: Literal["max", "min"] = "max"
    target: float | None = None
    steps: int | None = None
    points: tuple[ModelSizePoint, ...] = ()
    error: PowerLaw | None = None
    seconds: PowerLaw | None = None
    missing: dict[str, str] = field(default_factory=dict)
