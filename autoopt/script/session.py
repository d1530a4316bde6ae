"""The steps of a script as its torch hooks tell them, and what lies between them: evaluations, epochs' starts.

Steps are counted, timed by stage, and stopped at their ends on request.
The script's main thread runs the training. Between two goals it stands at a step's end and does what the serving
thread asks for: so whatever computes runs in the thread whose torch settings are the script's."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from autoopt.benchmark.clock import DeferredCost, Lap, StageClock, clock_for, deferred_cost_for, with_epochs
from autoopt.benchmark.device import Device, open_device
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.live import Printed, Stretch
from autoopt.benchmark.losses import LossRecorder, number
from autoopt.benchmark.seeding import random_state
from autoopt.records import Evaluated
from autoopt.script.boot import explained
from autoopt.script.metric import form_of, repeated

MOST_FORMS = 64
"""Kinds of lines that are kept: a script that prints more says something new each time."""
_INLINE = 3


@dataclass(kw_only=True)
class Goal(Stretch):
    """How far to train, and what is measured on the way.

    ``enough``: asked at each step's end whether it is over. ``before``: seconds of the laps that are over. ``other``:
    of what followed steps. ``opening``: of waiting for the first batch of an epoch. ``away_now``: of ``away``, in the
    step under way. ``forms``: of lines that it printed as it trained.
    """

    enough: Enough
    steps: int = 0
    before: float = 0.0
    other: float = 0.0
    opening: float = 0.0
    away_now: float = 0.0
    forms: set[str] = field(default_factory=set)

    def put(self, lap: Lap) -> None:
        """One more stretch of training."""
        self.laps.append(lap)
        self.before += lap.seconds

    def elapsed(self, clock: StageClock) -> float:
        return self.before + clock.elapsed()

    def lap(self) -> Lap:
        """All laps as one, with what followed the steps among ``other``, and epochs' starts as a stage of their own."""
        lap = super().lap()
        stages = {**lap.stages, "other": lap.stages.get("other", 0.0) + self.other}
        return Lap(lap.seconds, with_epochs(stages, self.opening), lap.steps)


@dataclass
class Interruption:
    """An evaluation or a checkpoint that is under way, or is over.

    Args:
        stage: ``evaluate`` or ``checkpoint``.
        step: training steps before it.
        began: by the device's clock.
        saving_seconds: of checkpoints within an evaluation, which are counted as such.
        sampled: lines of the user's at which the thread was met, while somebody looked.
    """

    stage: str
    step: int
    began: float
    seconds: float = 0.0
    samples: int = 0
    batches: int = 0
    gradients: bool = False
    training_mode: bool = False
    draws: bool = False
    training_data: bool = False
    training_data_seconds: float | None = None
    saving_seconds: float = 0.0
    calls: int = 0
    file: str | None = None
    line: int | None = None
    sampled: Counter[tuple[str, int]] = field(default_factory=Counter)
    _read_from: float | None = None
    _before_call: tuple[torch.Tensor, ...] = ()

    def called(self) -> None:
        """A model is called; whether numbers are drawn for each call shows from the first to the second one."""
        self.calls += 1
        if self.calls <= 2:
            state = random_state()
            now = state["torch"], *state.get("cuda", ())
            self.draws = self.calls == 2 and not all(map(torch.equal, self._before_call, now))
            self._before_call = now

    def reads_training_data(self, now: float) -> None:
        """A batch of the training's loader is asked for, or there was none left."""
        self.training_data = True
        if self._read_from is None:
            self._read_from = now
        self.training_data_seconds = now - self._read_from

    def evaluated(self) -> Evaluated:
        """The evaluation that it was; samples and batches are those of loaders."""
        known = {name: getattr(self, name) for name in Evaluated.__annotations__ if hasattr(self, name)}
        for place, times in self.sampled.most_common(1):
            known |= {"busiest": place, "busiest_share": times / self.sampled.total()}
        counted = {name: known[name] or None for name in ("samples", "batches", "calls")}
        return Evaluated(**{**known, **counted})


def steps_between(interruptions: list[Interruption], trained: int) -> float | None:
    """Training steps between two of them, on the mean; None where that is not known.

    Where there is no second, it is the first one's own step: what comes at every so many steps comes at that one first.
    Where more steps have passed since without one, it comes otherwise, and nobody knows when.
    """
    steps = sorted({each.step for each in interruptions if each.step > 0})
    if len(steps) > 1:
        return (steps[-1] - steps[0]) / (len(steps) - 1)
    return float(steps[0]) if steps and trained - steps[0] <= steps[0] else None


def seconds_by_step(interruptions: list[Interruption]) -> dict[int, float]:
    """Seconds of what lies between two steps, such as an evaluation of two data sets, by the steps before it."""
    found: dict[int, float] = {}
    for each in interruptions:
        found[each.step] = found.get(each.step, 0.0) + each.seconds
    return found


def seconds_of_one(interruptions: list[Interruption]) -> float | None:
    """Mean seconds of what lies between two steps; None where nothing did."""
    found = seconds_by_step(interruptions)
    return sum(found.values()) / len(found) if found else None


class Session:
    """The session of a script: what the torch hooks tell, and who waits for it.

    Attributes:
        steps, samples: trained so far. A step of which none were counted has as many as the one before: it trains on
            the same batch once more, or on one that does not tell.
        counts: whether samples are the unit, as the first step shows; False from the start where the baseline's are
            not.
        timed: whether a model was called in training. From then on there are ``device``, where it is, ``clock`` and
            ``deferred_cost``.
        evaluations: seen so far.
        openings: seconds until each epoch's first batch was there, from where its loader was asked for an iterator.
        first_at: when the first batch, or the first training call without one, was asked for; None before.
        imports: seconds of imports between the import of torch and the first step; None where nobody looked.
        began: when the process started to listen, by ``perf_counter``.
        first_step_at: when the first step's end was reached; None before.
        goal: the latest that was set.
        loss_factor: by which the mean of a step's losses is multiplied: its lines divide them by another number than
            the baseline's.
        between_steps: called before a batch is read, since a step that nothing has ended ends there.
        standing: whether the script stands at a step's end: what is called in the meantime is autoopt's, not the
        script's.
    """

    device: Device
    clock: StageClock
    deferred_cost: DeferredCost

    def __init__(self, *, stops: bool = True, counts: bool = True, memory_limit: int | None = None) -> None:
        self.stops, self.counts, self.memory_limit = stops, counts, memory_limit
        self.steps = self.samples = self._given = self._latest = 0
        self.evaluations, self.loss_factor = 0, 1.0
        self.openings: list[float] = []
        self.first_at: float | None = None
        self.imports: float | None = None
        self._opening: float | None = None
        self._interruptions: list[Interruption] = []
        self.timed = False
        self.began = perf_counter()
        self.first_step_at: float | None = None
        self.over = False
        self.standing = False
        self.between_steps: Callable[[], None] = lambda: None
        self.goal: Goal | None = None
        self._goal: Goal | None = None
        self._begun = False  # whether the step under way has computed
        self._aside: Interruption | None = None
        self._losses: list[Any] = []
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

    # the serving thread's side

    def run(self, enough: Enough) -> Goal:
        """Lets the script train until ``enough``, asked at each step's end with the steps and seconds so far.

        Raises:
            ScriptEnded: it came to its end before.
            BaseException: what it failed by.
        """
        goal = Goal(LossRecorder(self.device.kind == "cpu"), enough=enough)
        self.goal = goal
        self._jobs.put(goal)
        self.answer()
        return goal

    def in_main(self, work: Callable[[], Any]) -> Any:
        """Runs something in the script's main thread, which stands at a step's end."""
        self._jobs.put(work)
        return self.answer()

    def answer(self) -> Any:
        """Waits for what was asked for; at first, until the script stands at the end of its first training step.

        Raises:
            BaseException: what ended the script before, or the work.
        """
        answer = self._answers.get()
        if isinstance(answer, _Raised):
            raise answer.error
        return answer

    # the script's side

    def train_on(self, device: Any) -> None:
        """The model's device is known: from here on steps are timed."""
        self.device = open_device(str(device), self.memory_limit)
        if self.device.tensors is not None:
            self.device.tensors.__enter__()  # type: ignore[no-untyped-call]  # until the process ends
        self.clock = clock_for(self.device)
        self.deferred_cost = deferred_cost_for(self.device.torch, compiles=False)
        self.timed = True

    def data_begin(self, *, opens: bool = False) -> None:
        """Args: opens: a loader is asked for an iterator, and not for a batch of one."""
        self.between_steps()
        self.train_again()
        now = perf_counter()
        if opens:
            self._opening = now
        if self.first_at is None:
            self.first_at = now
        if self._goal is None:
            return
        gone = self.clock.set_aside()
        if self.clock.fine or not self._begun:
            self._goal.other += gone
        else:  # what the step has computed so far, with an earlier batch
            self.clock.unsplit += gone

    def data_end(self, *, has_come: bool = True) -> None:
        """Args: has_come: a batch, and not an iterator alone."""
        if has_come and self._opening is not None:
            seconds, self._opening = perf_counter() - self._opening, None
            self.openings.append(seconds)
            if self._goal is not None:
                self._goal.opening += seconds
        if self.timed:
            self.clock.mark("data")

    def forward_begin(self, prepared: bool) -> None:
        """Args: prepared: whether what came before it was the making of a batch without a loader."""
        self.train_again()
        if self.first_at is None:
            self.first_at = perf_counter()
        if not self.timed:
            return
        clock, first, self._begun = self.clock, not self._begun, True
        if prepared and (clock.fine or first):
            clock.mark("data")
        elif self.device.kind != "cpu":
            clock.mark("copy")
        elif clock.fine:
            clock.mark("other")

    def mark(self, stage: str) -> None:
        if self.timed and self.clock.fine:
            self.clock.mark(stage)

    def loss(self, value: Any) -> None:
        """A tensor that backward starts from."""
        if self._goal is not None:
            self._losses.append(value.tolist() if self.device.kind == "cpu" else value.detach())

    def count(self, samples: int | None) -> None:
        """Samples that the step under way is given; None or 0 where they cannot be counted."""
        self._given += samples or 0

    def metric(self, value: float) -> None:
        """The script has reported its metric."""
        if self._goal is not None and not repeated(self.steps, value, self._goal.metrics):
            self._goal.metrics.append((self.steps, self._seconds(self._goal), value))

    def line(self, text: str) -> None:
        """The script has printed a line; those of evaluations may tell a metric."""
        goal = self._goal
        if goal is None:
            return
        evaluating = self.evaluating is not None
        if not evaluating:
            form = form_of(text)
            if form in goal.forms or len(goal.forms) == MOST_FORMS:
                return
            goal.forms.add(form)
        goal.lines.append(Printed(self.steps, self._seconds(goal), self.evaluations if evaluating else None, text))

    def _seconds(self, goal: Goal) -> float:
        """Since the goal was set, evaluations included."""
        under_way = self.clock.elapsed() if self._aside is None else self.device.now() - self._aside.began
        return goal.before + sum(goal.aside.values()) + under_way

    def step_end(self) -> None:
        """A training step has ended: counts, and stops here where that was asked for."""
        self.steps += 1
        self._latest, self._given = self._given or self._latest, 0
        self.counts = self.counts and bool(self._latest)
        self.samples += self._latest
        if not self.timed:
            return
        self.mark("optimizer")
        self.clock.step_done()
        self._begun = False
        goal = self._goal
        if goal is None:
            if self.stops and self.first_step_at is None:
                self.first_step_at = perf_counter()
                self._stand(None)
            return
        goal.steps += 1
        goal.away.append(goal.away_now)
        goal.away_now = 0.0
        losses, self._losses = self._losses, []
        if losses and isinstance(losses[0], float | list):
            alone = len(losses) == 1 and self.loss_factor == 1.0
            goal.captured.extend(losses if alone else [self.loss_factor * sum(map(number, losses)) / len(losses)])
        elif losses:
            whole = losses[0] if len(losses) == 1 else sum(losses[1:], losses[0]) / len(losses)
            goal.captured.add(whole if self.loss_factor == 1.0 else whole * self.loss_factor)
        if self.deferred_cost.watching:
            self.deferred_cost.note([])
        if goal.enough(goal.steps, goal.elapsed(self.clock)):
            goal.put(self.clock.stop())
            self._goal = None
            self._stand(goal)

    def aside(self, stage: str) -> bool:
        """An evaluation or a checkpoint begins: its time is no part of the steps'. False where one is under way."""
        if self._aside is not None or not self.timed:
            return False
        if stage == "evaluate":
            self.evaluations += 1
            if self.evaluations > self.steps / 2 + _INLINE:  # with every step: a part of it
                return False
        if self._goal is not None:
            self._goal.put(self.clock.stop())
        self._aside = Interruption(stage, self.steps, self.device.now())
        return True

    def interruptions(self, stage: str) -> list[Interruption]:
        """Evaluations, or checkpoints, that came to their end."""
        return [each for each in self._interruptions if each.stage == stage]

    @property
    def evaluating(self) -> Interruption | None:
        """The evaluation that is under way; None where there is none."""
        return self._aside if self._aside is not None and self._aside.stage == "evaluate" else None

    def saved(self, seconds: float) -> None:
        """A checkpoint was written within an evaluation."""
        assert self._aside is not None
        self._aside.saving_seconds += seconds
        self._interruptions.append(Interruption("checkpoint", self.steps, self._aside.began, seconds))

    @contextmanager
    def stands(self) -> Iterator[None]:
        """The script stands: what is made and called is not its own."""
        self.standing = True
        try:
            yield
        finally:
            self.standing = False

    def uncounted(self, work: Callable[[], None]) -> None:
        """Does something at a step's end that is no part of the script's time."""
        assert self._goal is not None
        self._goal.put(self.clock.stop())
        began = self.device.now()
        try:
            with self.stands():
                work()
        finally:
            self._goal.away_now += self.device.now() - began
            self.clock.start()

    def train_again(self) -> None:
        """Training goes on; nothing to do where it never stopped."""
        if self._aside is None:
            return
        over, self._aside = self._aside, None
        stage, seconds = over.stage, self.device.now() - over.began
        over.seconds = max(seconds - over.saving_seconds, 0.0)
        self._interruptions.append(over)
        if self._goal is not None:
            self._goal.aside[stage] = self._goal.aside.get(stage, 0.0) + seconds
            self._goal.away_now += seconds
        self.clock.start()

    def end(self, error: BaseException | None) -> None:
        """The script has ended: whoever waits is notified, and whatever is asked for after gets the same answer."""
        if self.over or not self.stops:
            return
        self.over = self.standing = True
        reported = _Raised(explained(error, self.steps))
        if self._goal is not None and self._aside is None:
            self._goal.put(self.clock.stop())
        self._answers.put(reported)
        while True:
            job = self._jobs.get()
            self._answers.put(reported if isinstance(job, Goal) else _outcome(job))

    def _stand(self, answer: Any) -> None:
        """Stands at a step's end until there is a next goal."""
        with self.stands():
            self._answers.put(answer)
            while not isinstance(job := self._jobs.get(), Goal):
                self._answers.put(_outcome(job))
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
