"""Time-to-target: where a validation curve crosses the target, and what that costs in seconds.

A single noisy evaluation must not decide: crossings are read off a monotone fit of the curve
(isotonic regression). A run that did not reach the target is censored: it has no time, never a
number that stands for one. Pure functions on documents; nothing here needs torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from autoopt.records import Curve, Estimate, RunPart, RunParts, WholeRun
from autoopt.records.base import Z
from autoopt.records.messages import WHOLE_RUN, TrainingRun

Mode = Literal["max", "min"]
Array = NDArray[np.float64]


def whole_run_seconds(parts: RunParts, steps: float | None = None) -> WholeRun:
    """A whole run: start + steps + later epochs' starts + evaluations + checkpoints + end.

    Args:
        parts: as they were measured; what was not counts as nothing, and is named.
        steps: of the run; those of the plan where None.

    Raises:
        ValueError: neither reports the steps, or a step was not measured.
    """
    steps = parts.steps if steps is None else steps
    if steps is None or parts.step_seconds is None:
        what = "its steps" if steps is None else "the seconds of a step"
        raise ValueError(f"the seconds of a whole run need {what}, got None")
    epochs = math.ceil(steps / parts.steps_per_epoch - 1e-9) if parts.steps_per_epoch else 1
    each: list[tuple[str, float | None, float | None]] = [
        ("imports", parts.imports_seconds, 1),
        ("build", parts.build_seconds, 1),
        ("first batch", parts.first_batch_seconds, 1),
        ("warm-up", parts.warm_up_seconds, 1),
        ("steps", parts.step_seconds, steps),
        ("later epochs' starts", parts.epoch_seconds, max(epochs - 1, 0)),
        ("evaluations", parts.evaluation_seconds, _times(steps, parts.evaluate_every)),
        ("checkpoints", parts.checkpoint_seconds, _times(steps, parts.checkpoint_every)),
        ("end", parts.end_seconds, 1),
    ]
    seconds = sum((value or 0.0) * (count or 0.0) for _, value, count in each)
    return WholeRun(
        steps=steps,
        seconds=seconds,
        parts=tuple(
            RunPart(name=name, seconds=s * n, each=s, count=n, share=s * n / seconds if seconds else 0.0)
            for name, s, n in each
            if s is not None and n
        ),
        missing=tuple(name for name, value, count in each if value is None or count is None),
    )


def _times(steps: float, every: float | None) -> int | None:
    """How often something comes in so many steps, the last time at their end; None where that is not known."""
    return math.ceil(steps / every - 1e-9) if every else None


@dataclass(frozen=True)
class Fit:
    """The monotone fit of a curve. All of one length; ``residual``: root mean square of what it leaves."""

    steps: Array
    metrics: Array
    residual: float

    def at(self, step: float) -> float:
        """The fitted metric at a step, linear between evaluations, constant beyond them."""
        return float(np.interp(step, self.steps, self.metrics))


def fit(curve: Curve, mode: Mode) -> Fit | None:
    """Fits a curve so that it only gets better; None without a single finite evaluation."""
    points = [point for point in curve.points if point.metric is not None and math.isfinite(point.metric)]
    if not points:
        return None
    metrics = np.array([point.metric for point in points], dtype=np.float64)
    fitted = np.asarray(isotonic_regression(metrics, increasing=mode == "max").x, dtype=np.float64)
    return Fit(
        steps=np.array([point.step for point in points], dtype=np.float64),
        metrics=fitted,
        residual=float(np.sqrt(np.mean((metrics - fitted) ** 2))),
    )


def crossing(curve: Curve, target: float, mode: Mode) -> float | None:
    """The step at which the monotone fit first meets the target, between evaluations by interpolation.

    None where it does not: the run is censored.
    """
    fitted = fit(curve, mode)
    if fitted is None:
        return None
    sign = 1.0 if mode == "max" else -1.0
    over = sign * fitted.metrics >= sign * target - 1e-12
    if not over.any():
        return None
    first = int(np.argmax(over))
    if first == 0:
        return float(fitted.steps[0])
    before, after = fitted.metrics[first - 1], fitted.metrics[first]
    share = float((target - before) / (after - before))
    return float(fitted.steps[first - 1] + share * (fitted.steps[first] - fitted.steps[first - 1]))


def reachable(curve: Curve, mode: Mode, tolerance: float) -> float | None:
    """A target in place of one that the baseline cannot reach in its time, or that was not given.

    The metric at which the monotone fit of its run ends, less the tolerance, a share of its size.
    """
    fitted = fit(curve, mode)
    if fitted is None:
        return None
    end = float(fitted.metrics[-1])
    return end + tolerance * abs(end) * (-1 if mode == "max" else 1)


@dataclass(frozen=True)
class Parts:
    """Parts of a run to the target, in seconds and optimizer steps."""

    fixed_seconds: float
    step_seconds: float
    steps: float
    evaluation_seconds: float = 0.0
    evaluate_every: float | None = None
    epoch_seconds: float = 0.0
    steps_per_epoch: int | None = None
    checkpoint_seconds: float = 0.0
    checkpoint_every: float | None = None

    @property
    def seconds(self) -> float:
        """Of the whole run (:func:`whole_run_seconds`); the evaluation that sees the target reached counts."""
        shared = {name: value for name, value in vars(self).items() if name not in ("fixed_seconds", "steps")}
        return whole_run_seconds(RunParts(build_seconds=self.fixed_seconds, **shared), self.steps).seconds

    def planned(self, steps: float) -> Parts:
        """The same for a run of another length; the fixed cost is paid once all the same."""
        return replace(self, steps=steps)


def parts(run: TrainingRun, target: float | None, mode: Mode, step_seconds: float | None = None) -> Parts | None:
    """The parts of a training; None where it did not reach the target.

    Args:
        target: None takes the whole run.
        step_seconds: a better measured step (from interleaved blocks) in place of the run's own.
    """
    steps = run.steps if target is None else crossing(run.curve, target, mode)
    if steps is None or run.steps < 1:
        return None
    if run.stopped == WHOLE_RUN:  # its user waits for its end
        steps = run.steps
    every = [b.step - a.step for a, b in zip(run.curve.points, run.curve.points[1:], strict=False)]
    return Parts(
        fixed_seconds=run.fixed_seconds,
        step_seconds=(
            # without what is paid once, which the fixed seconds hold already
            max(run.training_seconds - run.once_seconds, 0.0) / run.steps if step_seconds is None else step_seconds
        ),
        steps=steps,
        evaluation_seconds=run.evaluation_seconds / run.evaluations if run.evaluations else 0.0,
        evaluate_every=float(np.median(every)) if every else (float(run.steps) if run.evaluations else None),
    )


def time_ratio(before: Parts, after: Parts, throughput: Estimate | None) -> Estimate:
    """Speedup of the time to target, with its interval, where both take the same steps by construction.

    Args:
        throughput: the step ratio's estimate; ``after`` holds its central value in its steps. None: a point.
    """
    spread = throughput.log_sd if throughput is not None and throughput.low > 0 else 0.0
    stepping = after.steps * after.step_seconds
    rest = after.seconds - stepping
    low, value, high = (before.seconds / (rest + stepping / math.exp(z * spread)) for z in (-Z, 0.0, Z))
    return Estimate(value=value, low=low, high=high, n=1 if throughput is None else throughput.n)
