"""One training from its first step to the target, to a limit, or to a script's own end, evaluations included."""

from __future__ import annotations

import math
from dataclasses import replace

from autoopt.benchmark.device import host_peak_bytes
from autoopt.benchmark.distributed.group import mean_losses, most, slowest_steps, total, without_waiting
from autoopt.benchmark.fingerprint import KeptWeights, Movement
from autoopt.benchmark.live import Printed, Stretch
from autoopt.benchmark.steady import excess
from autoopt.benchmark.trial_context import TrialContext
from autoopt.records import Curve, CurvePoint
from autoopt.records.messages import ENDED, TrainingRun
from autoopt.workload import Target

_NO_HOPE = 20
"""After so many losses in a row that are not finite a run is given up."""


class RunUnderWay:
    """A training that goes on in legs, so that two of them can take turns; its seconds are those of its legs.

    What is evaluated by autoopt is evaluated every so many steps, at the end of a stretch of steps. Evaluations and
    checkpoints of a script are its own, whenever it makes them. Both count against the time.

    Args:
        max_steps: optimizer steps; the planned run's where None.
        target: value of the target metric; the workload's where None. Without either it trains to a limit.
        confirm: evaluations after the first that has the target which must have it as well.
        beyond: share of the steps so far that is trained on thereafter; no part of the time to the target.
        keep: a folder for the weights at start, middle and end; none where empty.
    """

    def __init__(
        self,
        live: TrialContext,
        max_seconds: float,
        max_steps: int | None = None,
        target: float | None = None,
        confirm: int = 0,
        beyond: float = 0.0,
        keep: str = "",
    ) -> None:
        self.live, self.training = live, live.from_start()
        self.group = self.training.group
        self.max_seconds, self.confirm, self.beyond = max_seconds, confirm, beyond
        self.wanted = target if target is not None else live.target
        ends_at = max_steps if max_steps is not None else self.training.ends_at
        self.limit = self.last_step = math.inf if ends_at is None else ends_at
        self.evaluated_at = 0
        self.stopped = ""
        self.seconds = self.training_seconds = self.late_seconds = 0.0
        self.times: list[float] = []
        self.losses: list[float | None] = []
        self.finite = True
        self.reported: list[tuple[int, float, float]] = []
        self.lines: list[Printed] = []
        self._confirmed: int | None = None
        self._seen = 0
        self.movement: Movement = self.training.do(lambda: Movement(self.training.model))
        self.training.device.reset_peak()
        self.kept: KeptWeights | None = None
        if keep and self.group.first:
            self.kept = self.training.do(lambda: KeptWeights(self.training, keep))

    @property
    def steps(self) -> int:
        return self.training.steps

    def go_on(self, seconds: float = math.inf, steps: float = math.inf) -> bool:
        """Trains on to the end of a step or of an evaluation, for so many more seconds. True when it is over.

        ``steps``: to the first evaluation at or after this one; to the step itself where a script evaluates.
        """
        until = self.seconds + seconds
        while not self.stopped and self.seconds < until and self.steps < steps:
            self._one_leg(until, steps)
        return bool(self.stopped)

    def go_no_further(self, steps: int, evaluated_at: int) -> None:
        """Ends at that step, wherever else it would, and is evaluated where the other training was at its end."""
        self.limit, self.last_step = min(self.limit, steps), min(self.last_step, steps)
        self.evaluated_at = evaluated_at

    def _one_leg(self, until: float, steps: float) -> None:
        """Trains to the end of the time, or to where something is to be done: an evaluation, a measurement, the end."""
        training, before, first, known = self.training, self.seconds, self.steps, len(self.reported)
        if training.ends_at is None:  # up to there nobody but a script itself has anything to do
            next_stop = self.last_step if self._confirmed is not None else self.limit
        else:
            # without evaluations the parameters are read eight times
            evaluates = training.evaluation is not None
            every = training.lengths.evaluate_every if evaluates else max(int(self.limit) // 8, 1)
            also = self.evaluated_at if self.evaluated_at > first else self.limit
            next_stop = min(self.limit, also, (first // every + 1) * every)
        stop, confirmed = self.group.agree(min(next_stop, max(steps, first + 1))), self._confirmed

        def each(_: int, elapsed: float) -> None:
            stretch = training.stretch
            self.seconds = before + elapsed + sum(stretch.aside.values())
            self._note(stretch, before, known)
            if training.evaluations > self._seen:
                self._seen = training.evaluations
                training.uncounted(lambda: self._look(self._seen))

        def enough(done: int, elapsed: float) -> bool:
            new = confirmed is None and self._confirmed is not None  # where it ends is known now
            return new or self.seconds >= until or first + done >= stop or bool(self._why_over(first + done))

        left = None if stop == math.inf else max(int(stop) - first, 1)
        stretch = training.follow(enough, each, most=left)
        self._note(stretch, before, known)
        self.lines += [replace(line, seconds=before + line.seconds) for line in stretch.lines]
        self.seconds = before + self._count(stretch)
        hopeless = len(self.losses) >= _NO_HOPE and all(loss is None for loss in self.losses[-_NO_HOPE:])
        if training.ends_at is not None:
            if self.steps < stop and self.seconds < self.max_seconds:
                return  # the other one's turn
            if training.evaluation is not None and not hopeless:
                began, target = training.device.now(), self.live.workload.target
                metrics = training.evaluate()
                self.seconds += self.group.agree(training.device.now() - began)
                self.finite = self.finite and all(map(math.isfinite, metrics.values()))
                value = metrics[target.metric] if target is not None else next(iter(metrics.values()), math.nan)
                self._tell(self.steps, self.seconds, value)
            self._look(len(self.reported))
        why = self._why_over(self.steps)
        by_itself = training.over and why != "target"
        self.stopped = self.group.agree("not_finite" if hopeless else ENDED if by_itself else why)

    def _why_over(self, steps: int) -> str:
        if self._confirmed is not None and steps >= self.last_step:
            return "target"
        return "steps" if steps >= self.limit else "seconds" if self.seconds >= self.max_seconds else ""

    def _count(self, stretch: Stretch) -> float:
        """Takes the seconds and losses of a stretch, those of all processes; its seconds, evaluations included."""
        lap = without_waiting(stretch.lap(), stretch.away, self.group)
        settled, paid = self.training.deferred_cost.settled(lap)
        aside = sum(stretch.aside.values())
        ranks = self.group.gather((lap.seconds, aside, paid, settled.steps, list(stretch.captured.losses())))
        fewest = min(len(losses) for *_, losses in ranks)
        self.training_seconds += (seconds := max(each[0] for each in ranks))
        self.late_seconds += max(each[2] for each in ranks)
        self.times += slowest_steps([each[3][: len(lap.steps)] for each in ranks])
        self.losses += mean_losses([losses[:fewest] for *_, losses in ranks])
        self.finite = self.finite and None not in self.losses[-fewest:]
        return float(seconds + max(each[1] for each in ranks))

    def _note(self, stretch: Stretch, before: float, known: int) -> None:
        """Notes further values of the metric that a stretch has reported; a script reports them as it trains.

        ``before``, ``known``: seconds, and values that were reported, before the stretch.
        """
        for step, seconds, value in stretch.metrics[len(self.reported) - known :]:
            self._tell(step, before + seconds, value)

    def _tell(self, step: int, seconds: float, value: float) -> None:
        """A value of the metric; where it confirms the target, how far it is trained beyond it: what breaks later is
        seen, too.

        A single noisy evaluation that has the target is no crossing: those after it must have it as well.
        """
        self.reported.append((step, seconds, value))
        latest = self.reported[-1 - self.confirm :]
        if self._confirmed is None and len(latest) > self.confirm and all(map(self._meets, latest)):
            self._confirmed = len(self.reported)
            self.last_step = min(step + math.ceil(self.beyond * step), self.limit)

    def _meets(self, reading: tuple[int, float, float], target: Target | None = None) -> bool:
        target, value = target or self.live.workload.target, reading[2]
        if target is None or self.wanted is None or not math.isfinite(value):
            return False
        return value <= self.wanted if target.direction == "min" else value >= self.wanted

    def _look(self, evaluations: int) -> None:
        """Between two steps: at what has moved, and at weights that are to be kept."""
        self.movement.look(self.steps)
        if self.kept is not None:
            self.kept.evaluated(evaluations)

    def document(self) -> TrainingRun:
        """The run as far as it has come.

        Raises:
            UsageError: nothing that a script printed has the metric that was named.
        """
        live, training, target = self.live, self.training, self.live.workload.target
        found: tuple[str, ...] = ()
        if self.group.first:  # what it found is the answer
            found, target, self.reported = training.metric_of(self.lines, self.reported)
        own = (training.samples, live.build_seconds + live.setup_seconds, training.device.peak_bytes())
        more = (training.device.allocated_bytes(), host_peak_bytes())
        samples, fixed, peak, allocated, host = zip(*self.group.gather((*own, *more)), strict=True)
        evaluated = training.evaluation.samples if training.evaluation is not None and self.reported else None
        points = [
            CurvePoint(step=step, seconds=seconds, metric=value if math.isfinite(value) else None)
            for step, seconds, value in self.reported
        ]
        first = next(
            (p for p, reported in zip(points, self.reported, strict=True) if self._meets(reported, target)), None
        )
        once = self.late_seconds + excess(self.times)
        return TrainingRun(
            seed=live.seed,
            curve=Curve(
                seed=live.seed,
                points=tuple(points[: self._confirmed]),
                reached=None if self.wanted is None else first is not None,
                seconds_to_target=first.seconds if first else None,
                steps_to_target=first.step if first else None,
            ),
            seconds=self.seconds,
            training_seconds=self.training_seconds,
            evaluation_seconds=self.seconds - self.training_seconds,
            evaluations=len(self.reported) or training.evaluations,
            evaluated_samples=self.group.agree(evaluated),
            steps=self.steps,
            samples=total(samples),
            fixed_seconds=max(fixed) + once,
            once_seconds=once,
            reached=None if self.wanted is None else first is not None,
            finite=self.finite,
            losses=tuple(self.losses),
            peak_memory_bytes=most(peak),
            allocated_memory_bytes=most(allocated),
            peak_host_memory_bytes=total(host),
            stopped=self.stopped,
            metric_patterns=found,
            kept=() if self.kept is None else training.do(self.kept.files),
            past=tuple(points[self._confirmed :]) if self._confirmed is not None else (),
            moves=tuple(self.movement.moves),
            trained_parameters=sum(p.numel() for p in training.model.parameters() if p.requires_grad),
        )
