"""One training of a script from its first step to the target, to a limit, or to its own end."""

from __future__ import annotations

import statistics
from typing import Any

from autoopt.benchmark.kept_weights import KeptWeights
from autoopt.benchmark.steady import excess
from autoopt.errors import UsageError
from autoopt.records import Curve, CurvePoint
from autoopt.records.messages import TrainingRun
from autoopt.script.metric import direction_of, name_of
from autoopt.script.session import Goal

_NO_HOPE = 20
"""After so many losses in a row that are not finite a run is given up."""


def train(
    live: Any, max_seconds: float, max_steps: int | None, target: float | None, confirm: int, keep: str = ""
) -> TrainingRun:
    """Trains on from the first step; see ``autoopt.benchmark.tasks.train``.

    Evaluations and checkpoints are the script's own, whenever it makes them; they count against the time.
    """
    session = live.script.session
    metric = live.script.command.metric
    wanted = target if target is not None else live.target
    session.device.reset_peak()
    kept: KeptWeights | None = session.in_main(lambda: KeptWeights(live.training, keep)) if keep else None
    told, evaluations = 0.0, 0
    seen = {"reached": 0, "stopped": "steps"}

    def enough(done: int, elapsed: float) -> bool:
        nonlocal told, evaluations
        goal: Goal = session.goal
        seconds = elapsed + sum(goal.aside.values())
        if seconds - told >= 1.0:
            told = seconds
            live.emit({"step": session.steps, "seconds": seconds})
        if kept is not None and session.evaluations > evaluations:
            evaluations = session.evaluations
            session.beside(lambda: kept.evaluated(evaluations))
        if metric is not None and wanted is not None:
            reached = [i for i, (_, _, value) in enumerate(goal.metrics) if meets(value, wanted, metric)]
            if reached and len(goal.metrics) - reached[0] > confirm:
                seen["stopped"] = "target"
                return True
        if max_steps is not None and session.steps >= max_steps:
            return True
        if seconds >= max_seconds:
            seen["stopped"] = "seconds"
            return True
        return False

    goal = session.run_until_over(enough)
    if metric is not None and not goal.metrics and (session.evaluations or session.over):
        raise UsageError(
            f"--metric {metric!r} was told by nothing that the script printed or logged in {session.steps} steps "
            f"and {session.evaluations} evaluations",
            hint="a pattern with one group for the number, as the script prints it: 'val loss ([0-9.]+)'",
        )
    run = _document(live, goal, wanted, str(seen["stopped"]), metric)
    return run if kept is None else run.model_copy(update={"kept": session.in_main(kept.files)})


def meets(value: float, wanted: float, metric: str) -> bool:
    """Whether a value of the metric is as good as what is wanted."""
    return value <= wanted if direction_of(metric) == "min" else value >= wanted


def _document(live: Any, goal: Goal, wanted: float | None, stopped: str, metric: str | None) -> TrainingRun:
    session = live.script.session
    lap, losses = goal.lap(), goal.captured.losses()
    settled, paid = session.deferred_cost.settled(lap)
    evaluation = sum(goal.aside.values())
    once = paid + excess(settled.steps)
    points = tuple(
        CurvePoint(step=step, seconds=seconds, metric=value, train_loss=_recent(losses, step))
        for step, seconds, value in goal.metrics
    )
    first = None
    if metric is not None and wanted is not None:
        first = next((p for p in points if p.metric is not None and meets(p.metric, wanted, metric)), None)
    hopeless = len(losses) >= _NO_HOPE and all(loss is None for loss in losses[-_NO_HOPE:])
    return TrainingRun(
        seed=live.seed,
        curve=Curve(
            seed=live.seed,
            points=points,
            reached=None if wanted is None else first is not None,
            seconds_to_target=first.seconds if first else None,
            steps_to_target=first.step if first else None,
        ),
        seconds=lap.seconds + evaluation,
        training_seconds=lap.seconds,
        evaluation_seconds=evaluation,
        evaluations=len(points) or session.evaluations,
        steps=session.steps,
        samples=session.samples,
        fixed_seconds=live.build_seconds + once,
        once_seconds=once,
        reached=None if wanted is None else first is not None,
        finite=None not in losses,
        metrics={name_of(metric): points[-1].metric} if metric is not None and points else {},
        losses=losses,
        peak_memory_bytes=session.device.peak_bytes(),
        peak_host_memory_bytes=live.training.host_peak_bytes(),
        stopped="not_finite" if hopeless else stopped,
    )


def _recent(losses: tuple[float | None, ...], step: int) -> float | None:
    found = [loss for loss in losses[max(step - 20, 0) : step] if loss is not None]
    return statistics.fmean(found) if found else None
