"""One training from its first step to the target or a limit, evaluations included."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from autoopt.benchmark.blocks import train_until
from autoopt.benchmark.distributed.merging import mean_losses, most, slowest_steps, total
from autoopt.benchmark.kept_weights import KeptWeights
from autoopt.benchmark.movement import Movement
from autoopt.benchmark.steady import excess
from autoopt.benchmark.training import Training
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Curve, CurvePoint
from autoopt.records.messages import TrainingRun

_NO_HOPE = 20
"""After so many losses in a row that are not finite a run is given up."""

_LOOKS = 8
"""At the parameters of a run without evaluations."""


@dataclass
class _Log:
    """The log of a run so far. Seconds since its first step."""

    times: list[float] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    points: list[CurvePoint] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    training_seconds: float = 0.0
    late_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    evaluations: int = 0
    finite: bool = True
    there: int = 0
    confirmed: int | None = None
    peak: int | None = None
    allocated: int | None = None
    host_peak: int | None = None

    @property
    def seconds(self) -> float:
        return self.training_seconds + self.evaluation_seconds


class RunUnderWay:
    """A training that goes on in legs, so that two of them can take turns; its seconds are those of its legs.

    Args:
        live: the trial.
        max_seconds, max_steps, target, evaluate_every, confirm, beyond, keep: see ``autoopt.benchmark.tasks.train``.
    """

    def __init__(
        self,
        live: TrialContext,
        max_seconds: float,
        max_steps: int | None = None,
        target: float | None = None,
        evaluate_every: int | None = None,
        confirm: int = 0,
        beyond: float = 0.0,
        keep: str = "",
    ) -> None:
        self.live, self.max_seconds, self.confirm, self.beyond = live, max_seconds, confirm, beyond
        self.training = training = live.training if live.training.steps == 0 else live.restart(live.seed)
        self.wanted = target if target is not None else live.target
        self.limit = max_steps if max_steps is not None else training.total_steps
        self.every = evaluate_every or training.evaluate_every
        self.log = _Log()
        self.stopped = ""
        self.kept = KeptWeights(training, keep) if keep and training.group.first else None
        self.movement = Movement(training.model)
        self.last_step = self.limit
        self.evaluated_at = 0
        training.device.reset_peak()

    def go_on(self, seconds: float = math.inf) -> bool:
        """Trains so many seconds more, to the end of a step or of an evaluation. True when it is over."""
        log, until = self.log, self.log.seconds + seconds
        while not self.stopped and log.seconds < until:
            self._one_leg(until)
        return bool(self.stopped)

    def go_to(self, steps: int) -> bool:
        """Trains to the first evaluation at or after a step. True when it is over."""
        while not self.stopped and self.training.steps < steps:
            self._one_leg(math.inf)
        return bool(self.stopped)

    def go_no_further(self, steps: int, evaluated_at: int) -> None:
        """Ends at that step, wherever else it would, and is evaluated where the other training was at its end."""
        self.limit, self.last_step = min(self.limit, steps), min(self.last_step, steps)
        self.evaluated_at = evaluated_at

    def _one_leg(self, until: float) -> None:
        """To the next evaluation and through it, or to the end of the time."""
        live, training, log = self.live, self.training, self.log
        can_evaluate = training.evaluation is not None
        every = self.every if can_evaluate else max(self.limit // _LOOKS, 1)
        also = self.evaluated_at if self.evaluated_at > training.steps else self.limit
        goal = min(self.limit, also, (training.steps // every + 1) * every)
        _leg(live, training, log, goal, min(self.max_seconds, until))
        out_of_time = log.seconds >= self.max_seconds
        if training.steps < goal and not out_of_time:
            return  # the other one's turn
        hopeless = len(log.losses) >= _NO_HOPE and all(loss is None for loss in log.losses[-_NO_HOPE:])
        if can_evaluate and not hopeless:
            _evaluate(live, training, log)
        self.movement.look(training.steps)
        if self.kept:
            self.kept.evaluated(log.evaluations)
        _peaks(training, log)
        if can_evaluate and log.confirmed is None and self.wanted is not None:
            self._confirm()
        if hopeless:
            self.stopped = "not_finite"
        elif log.confirmed is not None and training.steps >= self.last_step:
            self.stopped = "target"
        elif training.steps >= self.limit:
            self.stopped = "steps"
        elif out_of_time or log.seconds >= self.max_seconds:
            self.stopped = "seconds"

    def _confirm(self) -> None:
        """Notes where the target is confirmed, and how far beyond it is trained on: what breaks later is seen, too."""
        assert self.wanted is not None
        if _reached(self.live, self.log, self.wanted, self.confirm):
            steps = self.training.steps
            self.log.confirmed = len(self.log.points)
            self.last_step = min(steps + math.ceil(self.beyond * steps), self.limit)

    @property
    def seconds(self) -> float:
        """Of training and evaluating, so far."""
        return self.log.seconds

    @property
    def steps(self) -> int:
        """So far."""
        return int(self.training.steps)

    def document(self) -> TrainingRun:
        """The run as far as it has come."""
        found = _document(self.live, self.training, self.log, self.wanted, self.stopped)
        found = found.model_copy(update={"moves": tuple(self.movement.moves)})
        return found.model_copy(update={"kept": self.kept.files()}) if self.kept else found


def _leg(live: TrialContext, training: Training, log: _Log, stop_at: int, max_seconds: float) -> None:
    """Trains to a step or to the end of the time, and tells how it stands about once a second."""
    told, first = 0.0, training.steps

    def enough(done: int, elapsed: float) -> bool:
        nonlocal told
        if elapsed - told >= 1.0:
            told = elapsed
            live.emit({"step": first + done, "seconds": log.seconds + elapsed})
        return first + done >= stop_at or log.seconds + elapsed >= max_seconds

    lap, recorder = train_until(training, enough, most=max(stop_at - first, 1))
    settled, paid = training.deferred_cost.settled(lap)
    ranks = training.group.gather((lap.seconds, paid, settled.steps, recorder.losses()))
    log.training_seconds += max(seconds for seconds, *_ in ranks)
    log.late_seconds += max(late for _, late, *_ in ranks)
    log.times += slowest_steps([steps for *_, steps, _ in ranks])
    found = mean_losses([losses for *_, losses in ranks])
    log.losses += found
    log.finite = log.finite and None not in found


def _evaluate(live: TrialContext, training: Training, log: _Log) -> None:
    began = training.device.now()
    metrics = training.evaluate()
    log.evaluation_seconds += training.group.agree(training.device.now() - began)
    log.evaluations += 1
    log.finite = log.finite and all(math.isfinite(value) for value in metrics.values())
    log.metrics = {name: value for name, value in metrics.items() if math.isfinite(value)}
    metric = _metric(live, metrics)
    recent = [loss for loss in log.losses[-training.evaluate_every :] if loss is not None]
    point = CurvePoint(
        step=training.steps,
        seconds=log.seconds,
        metric=metric if metric is not None and math.isfinite(metric) else None,
        train_loss=statistics.fmean(recent) if recent else None,
    )
    log.points.append(point)
    live.emit({"step": point.step, "seconds": point.seconds, "metric": point.metric, "train_loss": point.train_loss})


def _metric(live: TrialContext, metrics: dict[str, float]) -> float | None:
    target = live.workload.target
    if target is not None:
        return metrics[target.metric]
    return next(iter(metrics.values()), None)


def _reached(live: TrialContext, log: _Log, wanted: float, confirm: int) -> bool:
    """Whether the latest evaluation has the target, and so had as many before it as were asked for to confirm it.

    A single noisy evaluation above the target is no crossing: the one after it must be there as well.
    """
    metric = log.points[-1].metric if log.points else None
    target = live.workload.target
    if metric is None or target is None:
        return False
    there = metric >= wanted if target.direction == "max" else metric <= wanted
    log.there = log.there + 1 if there else 0
    return log.there > confirm


def _peaks(training: Training, log: _Log) -> None:
    device, gather = training.device, training.group.gather
    peaks = {"peak": most(gather(device.peak_bytes())), "allocated": most(gather(device.allocated_bytes()))}
    for name, now in (*peaks.items(), ("host_peak", total(gather(training.host_peak_bytes())))):
        if now is not None:
            setattr(log, name, max(getattr(log, name) or 0, now))


def _document(live: TrialContext, training: Training, log: _Log, wanted: float | None, stopped: str) -> TrainingRun:
    first = _first_reaching(live, log, wanted)
    reached = None if wanted is None else first is not None
    evaluation: Any = training.evaluation
    once = log.late_seconds + excess(log.times)
    return TrainingRun(
        seed=live.seed,
        curve=Curve(
            seed=live.seed,
            points=tuple(log.points[: log.confirmed]),
            reached=reached,
            seconds_to_target=first.seconds if first else None,
            steps_to_target=first.step if first else None,
        ),
        seconds=log.seconds,
        training_seconds=log.training_seconds,
        evaluation_seconds=log.evaluation_seconds,
        evaluations=log.evaluations,
        evaluated_samples=training.group.agree(evaluation.samples) if log.evaluations else None,
        steps=training.steps,
        samples=total(training.group.gather(training.samples)),
        fixed_seconds=max(training.group.gather(live.build_seconds + live.setup_seconds)) + once,
        once_seconds=once,
        reached=reached,
        finite=log.finite,
        metrics=log.metrics,
        losses=tuple(log.losses),
        peak_memory_bytes=log.peak,
        allocated_memory_bytes=log.allocated,
        peak_host_memory_bytes=log.host_peak,
        stopped=stopped,
        past=tuple(log.points[log.confirmed :]) if log.confirmed is not None else (),
        trained_parameters=sum(p.numel() for p in training.model.parameters() if p.requires_grad),
    )


def _first_reaching(live: TrialContext, log: _Log, wanted: float | None) -> CurvePoint | None:
    target = live.workload.target
    if wanted is None or target is None:
        return None
    sign = 1 if target.direction == "max" else -1
    return next((p for p in log.points if p.metric is not None and sign * p.metric >= sign * wanted), None)
