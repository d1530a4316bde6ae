"""The synthetic document of models of three sizes, with both power laws."""

from __future__ import annotations

from math import exp, hypot

from autoopt import records as r
from autoopt.records.model_scaling import FittedAt, ModelScaling, ModelSizePoint, PowerLaw, SizeRun
from benchmarks.sample.pieces import trial
from benchmarks.sample.plain import no_gain

WIDTHS = {16: (2_500, 0.163, 41.0), 32: (10_000, 0.112, 64.0), 64: (40_000, 0.081, 97.0)}
"""Width to parameters, error after the same steps, and seconds to the target."""
_SEEDS = {0: -0.02, 1: 0.03}


def sizes() -> r.Result:
    """Two smaller models were trained next to the one as it is, and none paid."""
    base = no_gain()
    tried = tuple(_trial(number, width) for number, width in enumerate((32, 16), 1))
    return base.model_copy(
        update={
            "workload": base.workload.model_copy(update={"name": "synthetic, three sizes"}),
            "trials": tried,
            "model_scaling": scaling(),
        }
    )


def _trial(number: int, width: int) -> r.Trial:
    setting = {"build": "my_module:build", "arguments": {"width": width}}
    return trial(number, "model_size", r.Verdict.QUALITY_LOST, 1.5, setting=setting, quality=None)


def scaling() -> ModelScaling:
    """Three sizes from two seeds each."""
    points = tuple(_point(number, width) for number, width in zip((2, 1, None), WIDTHS, strict=True))
    error = _law("error", -0.252, 0.115, r.Estimate(value=16_300.0, low=12_100.0, high=23_900.0, n=6))
    return ModelScaling(
        metric="accuracy", mode="max", target=0.9, steps=120, points=points, error=error,
        seconds=_law("seconds", 0.311, 63.0, None),
    )  # fmt: skip


def _point(number: int | None, width: int) -> ModelSizePoint:
    parameters, error, seconds = WIDTHS[width]
    runs = (
        SizeRun(seed=seed, metric=1 - error * (1 + off), seconds=seconds * (1 + off), reached=True)
        for seed, off in _SEEDS.items()
    )
    arguments = {} if number is None else {"width": width}
    return ModelSizePoint(arguments=arguments, trial=number, parameters=parameters, runs=tuple(runs))


def _law(of: str, exponent: float, middle: float, at_target: r.Estimate | None) -> PowerLaw:
    half = 0.057
    line = []
    for place in (-2, -1, 0, 1, 2):
        parameters, value = 10_000 * 2.0**place, middle * 2.0 ** (place * exponent)
        off = exp(0.06 * hypot(1, place))
        line.append(FittedAt(parameters=parameters, value=value, low=value / off, high=value * off))
    return PowerLaw.model_validate(
        {
            "of": of,
            "exponent": r.Estimate(value=exponent, low=exponent - half, high=exponent + half, n=6),
            "standard_error": half / 2.78,
            "scatter": 0.03,
            "runs": 6,
            "sizes": 3,
            "line": tuple(line),
            "at_target": at_target,
        }
    )
