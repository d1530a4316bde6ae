"""The steps of a script as its joints tell them: counted, timed by stage, and stopped at their ends when told.

The script's main thread runs the training. Between two goals it stands at a step's end and does what the serving
thread asks for: so whatever computes runs in the thread whose torch settings are the script's.
"""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from autoopt.benchmark.clock import Lap, StageClock, clock_for
from autoopt.benchmark.deferred_cost import DeferredCost, deferred_cost_for
from autoopt.benchmark.device import Device, open_device
from autoopt.benchmark.loss_recorder import LossRecorder
from autoopt.script.endings import ScriptEnded
from autoopt.script.found_metric import Told

Enough = Callable[[int, float], bool]

_INLINE = 3


@dataclass
class Goal:
    """How far to train, and what is measured on the way.

    ``laps``: stretches of training; what lies between them is in ``aside``, seconds by stage. ``metrics``: values of
    the metric with the step and the seconds at which each was told, evaluations included. ``lines``: that were printed
    at evaluations. ``before``: seconds of the stretches that are over. ``away``: for each step, seconds of it in
    which the script evaluated or saved, or was looked at.
    """

    enough: Enough
    captured: LossRecorder
    steps: int = 0
    laps: list[Lap] = field(default_factory=list)
    aside: dict[str, float] = field(default_factory=dict)
    metrics: list[tuple[int, float, float]] = field(default_factory=list)
    lines: list[Told] = field(default_factory=list)
    other: float = 0.0
    before: float = 0.0
    away: list[float] = field(default_factory=list)
    away_now: float = 0.0

    def put(self, lap: Lap) -> None:
        """One more stretch of training."""
        self.laps.append(lap)
        self.before += lap.seconds

    def elapsed(self, clock: StageClock) -> float:
        return self.before + clock.elapsed()

    def lap(self) -> Lap:
        """All laps as one, with what followed the steps among ``other``."""
        stages: dict[str, float] = {}
        for lap in self.laps:
            for stage, seconds in lap.stages.items():
                stages[stage] = stages.get(stage, 0.0) + seconds
        stages["other"] = stages.get("other", 0.0) + self.other
        return Lap(sum(lap.seconds for lap in self.laps), stages, [step for lap in self.laps for step in lap.steps])


class Session:
    """The session of a script: what the joints tell, and who waits for it.

    Attributes:
        steps, samples: trained so far.
        device: where the model is; None before the first training call of one.
        evaluations: seen so far.
        listeners: called at each step's end, by whoever observes the script.
        began: when the process started to listen, by ``perf_counter``.
        first_step_at: when the first step's end was reached; None before.
        goal: the latest that was set.
        standing: whether the script stands at a step's end: what is called meanwhile is autoopt's, not the script's.
    """

    def __init__(self, *, stops: bool = True) -> None:
        self.stops = stops
        self.steps = self.samples = 0
        self.evaluations = 0
        self.device: Device | None = None
        self.clock: StageClock | None = None
        self.deferred_cost: DeferredCost | None = None
        self.listeners: list[Callable[[], None]] = []
        self.on_aside: Callable[[str, float], None] | None = None
        self.began = perf_counter()
        self.first_step_at: float | None = None
        self.over = False
        self.standing = False
        self.goal: Goal | None = None
        self._goal: Goal | None = None
        self._aside: tuple[str, float] | None = None
        self._losses: list[Any] = []
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    # the serving thread's side

    def first_step(self) -> None:
        """Waits until the script stands at the end of its first training step.

        Raises:
            BaseException: what ended the script before.
        """
        self._received()

    def run_until(self, enough: Enough) -> tuple[Lap, LossRecorder]:
        """Lets the script train until ``enough``, asked at each step's end with the steps and seconds so far.

        Raises:
            ScriptEnded: it came to its end before.
            BaseException: what it failed by.
        """
        goal = self.run(enough)
        return goal.lap(), goal.captured

    def run(self, enough: Enough) -> Goal:
        """The same, with all that was measured."""
        assert self.device is not None, "there is a device from the first step on"
        goal = Goal(enough, LossRecorder(self.device.kind == "cpu"))
        self.goal = goal
        self._jobs.put(goal)
        self._received()
        return goal

    def run_until_over(self, enough: Enough) -> Goal:
        """The same where it does not matter that the script comes to its end before."""
        with contextlib.suppress(ScriptEnded):
            return self.run(enough)
        assert self.goal is not None
        return self.goal

    def in_main(self, work: Callable[[], Any]) -> Any:
        """Runs something in the script's main thread, which stands at a step's end."""
        self._jobs.put(work)
        return self._received()

    def _received(self) -> Any:
        answer = self._answers.get()
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    # the script's side

    def train_on(self, device: Any) -> None:
        """The model's device is known: from here on steps are timed."""
        self.device = open_device(str(device))
        self.clock = clock_for(self.device)
        self.deferred_cost = deferred_cost_for(self.device.torch, compiles=False)

    def data_begin(self) -> None:
        self.train_again()
        if self.clock is not None and self._goal is not None:
            self._goal.other += self.clock.set_aside()

    def data_end(self) -> None:
        if self.clock is not None:
            self.clock.mark("data")

    def forward_begin(self, prepared: bool) -> None:
        """Args: prepared: whether what came before it was the making of a batch without a loader."""
        self.train_again()
        clock = self.clock
        if clock is None:
            return
        if prepared:
            clock.mark("data")
        elif self.device is not None and self.device.kind != "cpu":
            clock.mark("copy")
        elif clock.fine:
            clock.mark("other")

    def mark(self, stage: str) -> None:
        if self.clock is not None and self.clock.fine:
            self.clock.mark(stage)

    def loss(self, value: Any) -> None:
        """A tensor that backward starts from."""
        if self._goal is not None:
            on_cpu = self.device is not None and self.device.kind == "cpu"
            self._losses.append(value.tolist() if on_cpu else value.detach())

    def metric(self, value: float) -> None:
        """The script has told its metric."""
        if self._goal is not None:
            self._goal.metrics.append((self.steps, self._seconds(self._goal), value))

    def line(self, text: str) -> None:
        """The script has printed a line; those of evaluations may tell a metric."""
        if self._goal is not None and self._aside is not None and self._aside[0] == "evaluate":
            self._goal.lines.append(Told(self.steps, self._seconds(self._goal), self.evaluations, text))

    def _seconds(self, goal: Goal) -> float:
        """Since the goal was set, evaluations included."""
        assert self.clock is not None
        assert self.device is not None
        under_way = self.clock.elapsed() if self._aside is None else self.device.now() - self._aside[1]
        return goal.before + sum(goal.aside.values()) + under_way

    def step_end(self) -> None:
        """A training step has ended: counts, and stops here where that was asked for."""
        self.steps += 1
        if self.clock is None:
            return
        self.mark("optimizer")
        self.clock.step_done()
        for listener in self.listeners:
            listener()
        goal = self._goal
        if goal is None:
            if self.stops and self.first_step_at is None:
                self.first_step_at = perf_counter()
                self._stand(None)
            return
        goal.steps += 1
        goal.away.append(goal.away_now)
        goal.away_now = 0.0
        self._note_loss(goal)
        if self.deferred_cost is not None and self.deferred_cost.watching:
            self.deferred_cost.note([])
        if goal.enough(goal.steps, goal.elapsed(self.clock)):
            goal.put(self.clock.stop())
            self._goal = None
            self._stand(goal)

    def aside(self, stage: str) -> bool:
        """An evaluation or a checkpoint begins: its time is no part of the steps'. False where one is under way."""
        if self._aside is not None or self.clock is None:
            return False
        if stage == "evaluate":
            self.evaluations += 1
            if self.evaluations > self.steps / 2 + _INLINE:  # with every step: a part of it
                return False
        if self._goal is not None:
            self._goal.put(self.clock.stop())
        assert self.device is not None
        self._aside = (stage, self.device.now())
        return True

    def beside(self, work: Callable[[], None]) -> None:
        """Does something at a step's end that is no part of the script's time."""
        assert self._goal is not None
        assert self.clock is not None
        assert self.device is not None
        self._goal.put(self.clock.stop())
        self.standing, began = True, self.device.now()
        try:
            work()
        finally:
            self.standing = False
            self._goal.away_now += self.device.now() - began
            self.clock.start()

    def train_again(self) -> None:
        """Training goes on; nothing to do where it never stopped."""
        if self._aside is None:
            return
        assert self.device is not None
        assert self.clock is not None
        (stage, began), self._aside = self._aside, None
        seconds = self.device.now() - began
        if self._goal is not None:
            self._goal.aside[stage] = self._goal.aside.get(stage, 0.0) + seconds
            self._goal.away_now += seconds
        if self.on_aside is not None:
            self.on_aside(stage, seconds)
        self.clock.start()

    def end(self, error: BaseException | None) -> None:
        """The script has ended: whoever waits is told, and whatever is asked for after gets the same answer."""
        if self.over or not self.stops:
            return
        self.over = self.standing = True
        told = _Raised(error if error is not None else ScriptEnded(self.steps))
        if self._goal is not None and self.clock is not None and self._aside is None:
            self._goal.put(self.clock.stop())
        self._answers.put(told)
        while True:
            job = self._jobs.get()
            self._answers.put(told if isinstance(job, Goal) else _outcome(job))

    def _note_loss(self, goal: Goal) -> None:
        losses, self._losses = self._losses, []
        if not losses:
            return
        if isinstance(losses[0], float | list):
            goal.captured.extend(losses if len(losses) == 1 else [sum(map(_number, losses)) / len(losses)])
        else:
            goal.captured.add(losses[0] if len(losses) == 1 else sum(losses[1:], losses[0]) / len(losses))

    def _stand(self, answer: Any) -> None:
        """Stands at a step's end until there is a next goal."""
        self.standing = True
        self._answers.put(answer)
        while not isinstance(job := self._jobs.get(), Goal):
            self._answers.put(_outcome(job))
        self.standing = False
        assert self.clock is not None
        assert self.deferred_cost is not None
        self._goal = job
        self._losses.clear()
        self.deferred_cost.begin()
        self.clock.start()


@dataclass
class _Raised:
    error: BaseException


def _outcome(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except BaseException as error:  # whatever it is, it is the asking thread's
        return _Raised(error)


def _number(value: Any) -> float:
    while isinstance(value, list):
        (value,) = value
    return float(value)
