"""One training of a script from its first step to the target, to a limit, or to its own end."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

from autoopt.benchmark.distributed.group import Group
from autoopt.benchmark.distributed.merging import mean_losses, most, slowest_steps, total
from autoopt.benchmark.kept_weights import KeptWeights
from autoopt.benchmark.movement import Movement
from autoopt.benchmark.steady import excess
from autoopt.errors import UsageError
from autoopt.records import Curve, CurvePoint
from autoopt.records.messages import TrainingRun
from autoopt.script.found_metric import Told, candidates, chosen, values
from autoopt.script.goal import Goal
from autoopt.script.metric import direction_of, name_of
from autoopt.script.ranks import without_waiting

_RESTS = 0.02
"""For so many seconds it is not asked again whether a run is over, unless something but steps has happened."""
_NO_HOPE = 20
"""After so many losses in a row that are not finite a run is given up."""


class ScriptRun:
    """A training of a script that goes on in legs, so that two of them can take turns (``autoopt.benchmark.run``).

    Evaluations and checkpoints are the script's own, whenever it makes them; they count against the time.

    Args:
        live: the trial, which stands at the end of its first step.
        max_seconds, max_steps, target, confirm, beyond, keep: see ``autoopt.benchmark.tasks.train``.
    """

    def __init__(
        self,
        live: Any,
        max_seconds: float,
        max_steps: int | None = None,
        target: float | None = None,
        confirm: int = 0,
        beyond: float = 0.0,
        keep: str = "",
    ) -> None:
        self.live, self.session = live, live.script.session
        self.group: Group = live.training.group
        self.max_seconds, self.max_steps, self.confirm, self.beyond = max_seconds, max_steps, confirm, beyond
        self.metric: str | None = live.script.command.metric
        self.wanted = target if target is not None else live.target
        self.stopped = ""
        self.seconds = 0.0
        self.training_seconds = self.late_seconds = 0.0
        self.times: list[float] = []
        self.losses: list[float | None] = []
        self.told: list[tuple[int, float, float]] = []
        self.lines: list[Told] = []
        self._emitted, self._evaluations = 0.0, 0
        self._confirmed: int | None = None
        self.movement: Movement = self.session.in_main(lambda: Movement(live.training.model))
        self.session.device.reset_peak()
        self.kept: KeptWeights | None = None
        if keep and self.group.first:
            self.kept = self.session.in_main(lambda: KeptWeights(live.training, keep))

    def go_on(self, seconds: float = math.inf) -> bool:
        """Trains so many seconds more, to the end of a step and what follows it. True when it is over."""
        if self.stopped:
            return True
        before, until = self.seconds, self.seconds + seconds
        earlier = len(self.told)

        def each(done: int, elapsed: float) -> None:
            goal: Goal = self.session.goal
            self.seconds = before + elapsed + sum(goal.aside.values())
            self._note(goal, earlier, before)
            self._evaluated()

        def enough(done: int, elapsed: float) -> bool:
            self.stopped = self._why_over()
            if self._confirmed is not None:
                self.session.goal.rests = 0.0  # it ends with a step from here on
            return bool(self.stopped) or self.seconds >= until

        left = None if self.max_steps is None else max(self.max_steps - self.session.steps, 1)
        goal = self.live.training.follow(enough, each, most=left, rests=_RESTS)
        self._note(goal, earlier, before)
        self.lines += [replace(line, seconds=before + line.seconds) for line in goal.lines]
        self.seconds = before + self._count(goal)
        self.stopped = self.stopped or self._why_over() or ("steps" if self.session.over else "")
        self.stopped = self.group.agree(self.stopped)
        return bool(self.stopped)

    def go_no_further(self, steps: int, evaluated_at: int) -> None:
        """Ends at that step, wherever else it would; it is evaluated where the script does so."""
        self.max_steps = steps if self.max_steps is None else min(self.max_steps, steps)

    def _count(self, goal: Goal) -> float:
        """Takes a leg's seconds and losses, those of all processes; its seconds, evaluations included."""
        lap = without_waiting(goal.lap(), goal.away, self.group)
        settled, paid = self.session.deferred_cost.settled(lap)
        aside = sum(goal.aside.values())
        ranks = self.group.gather((lap.seconds, aside, paid, settled.steps, list(goal.captured.losses())))
        seconds = max(each[0] for each in ranks)
        fewest = min(len(each[4]) for each in ranks)
        self.training_seconds += seconds
        self.late_seconds += max(each[2] for each in ranks)
        self.times += slowest_steps([each[3][: len(lap.steps)] for each in ranks])
        self.losses += mean_losses([each[4][:fewest] for each in ranks])
        return float(seconds + max(each[1] for each in ranks))

    def _note(self, goal: Goal, earlier: int, before: float) -> None:
        """Values of the metric that this leg has told so far."""
        new = goal.metrics[len(self.told) - earlier :]
        self.told += [(step, before + seconds, value) for step, seconds, value in new]

    def _evaluated(self) -> None:
        if self.seconds - self._emitted >= 1.0:
            self._emitted = self.seconds
            self.live.emit({"step": self.session.steps, "seconds": self.seconds})
        if self.session.evaluations > self._evaluations:
            self._evaluations = self.session.evaluations
            self.session.beside(self._look)

    def _look(self) -> None:
        self.movement.look(self.session.steps)
        if self.kept is not None:
            self.kept.evaluated(self._evaluations)

    def _why_over(self) -> str:
        if self.metric is not None and self.wanted is not None:
            reached = [i for i, (_, _, value) in enumerate(self.told) if meets(value, self.wanted, self.metric)]
            if reached and len(self.told) - reached[0] > self.confirm:
                self._confirmed = reached[0] + self.confirm + 1
                if self.session.steps >= (1 + self.beyond) * self.told[self._confirmed - 1][0]:
                    return "target"
        if self.max_steps is not None and self.session.steps >= self.max_steps:
            return "steps"
        return "seconds" if self.seconds >= self.max_seconds else ""

    @property
    def steps(self) -> int:
        """So far."""
        return int(self.session.steps)

    def document(self) -> TrainingRun:
        """The run as far as it has come.

        Raises:
            UsageError: nothing told the metric.
        """
        session, metric = self.session, self.metric
        if not self.group.first:  # what the first one found is the answer
            return self._document()
        if metric is not None and not self.told and (session.evaluations or session.over):
            raise UsageError(
                f"--metric {metric!r} was told by nothing that the script printed or logged in {session.steps} steps "
                f"and {session.evaluations} evaluations",
                hint="a pattern with one group for the number, as the script prints it: 'val loss ([0-9.]+)'",
            )
        found = () if metric is not None else candidates(self.lines)
        taken = chosen(found)
        if taken is not None:
            self.metric, self.told = taken, values(taken, self.lines)
        run = self._document().model_copy(update={"told": found})
        return run if self.kept is None else run.model_copy(update={"kept": session.in_main(self.kept.files)})

    def _document(self) -> TrainingRun:
        live, session, metric, wanted = self.live, self.session, self.metric, self.wanted
        own = (live.training.samples, live.build_seconds, session.device.peak_bytes(), live.training.host_peak_bytes())
        ranks = self.group.gather(own)
        losses = tuple(self.losses)
        once = self.late_seconds + excess(self.times)
        points = tuple(
            CurvePoint(step=step, seconds=seconds, metric=value, train_loss=_recent(losses, step))
            for step, seconds, value in self.told
        )
        points, past = points[: self._confirmed], points[self._confirmed :] if self._confirmed is not None else ()
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
            seconds=self.seconds,
            training_seconds=self.training_seconds,
            evaluation_seconds=self.seconds - self.training_seconds,
            evaluations=len(self.told) or session.evaluations,
            steps=session.steps,
            samples=total([each[0] for each in ranks]),
            fixed_seconds=max(each[1] for each in ranks) + once,
            once_seconds=once,
            reached=None if wanted is None else first is not None,
            finite=None not in losses,
            metrics={name_of(metric): points[-1].metric} if metric is not None and points else {},
            losses=losses,
            peak_memory_bytes=most([each[2] for each in ranks]),
            peak_host_memory_bytes=total([each[3] for each in ranks]),
            stopped="not_finite" if hopeless else self.stopped,
            past=past,
            moves=tuple(self.movement.moves),
        )


def meets(value: float, wanted: float, metric: str) -> bool:
    """Whether a value of the metric is as good as what is wanted."""
    return value <= wanted if direction_of(metric) == "min" else value >= wanted


def _recent(losses: tuple[float | None, ...], step: int) -> float | None:
    found = [loss for loss in losses[max(step - 20, 0) : step] if loss is not None]
    return statistics.fmean(found) if found else None
