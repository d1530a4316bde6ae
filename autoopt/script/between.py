"""How far a script is to train, and everything of its run that is no training step: evaluations, epochs' starts."""

from __future__ import annotations

from dataclasses import dataclass, field

from autoopt.benchmark.clock import Lap, StageClock, with_epochs
from autoopt.benchmark.distributed.group import Enough
from autoopt.benchmark.live import Stretch
from autoopt.records import Evaluated


@dataclass(kw_only=True)
class Goal(Stretch):
    """How far to train, and what is measured on the way.

    ``enough``: asked at each step's end whether it is over. ``before``: seconds of the laps that are over. ``other``:
    of what followed steps. ``opening``: of waiting for the first batch of an epoch. ``away_now``: of ``away``, in the
    step under way.
    """

    enough: Enough
    steps: int = 0
    before: float = 0.0
    other: float = 0.0
    opening: float = 0.0
    away_now: float = 0.0

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
    """

    stage: str
    step: int
    began: float
    seconds: float = 0.0
    samples: int = 0
    batches: int = 0
    gradients: bool = False
    training_mode: bool = False
    training_data: bool = False
    training_data_seconds: float = 0.0
    saving_seconds: float = 0.0
    called: bool = False
    file: str | None = None
    line: int | None = None
    _read_from: float | None = None

    def reads_training_data(self, now: float) -> None:
        """A batch of the training's loader is asked for, or there was none left."""
        self.training_data = True
        if self._read_from is None:
            self._read_from = now
        self.training_data_seconds = now - self._read_from

    def evaluated(self) -> Evaluated:
        """The evaluation that it was; samples and batches are those of loaders."""
        return Evaluated(
            step=self.step,
            seconds=self.seconds,
            samples=self.samples or None,
            batches=self.batches or None,
            gradients=self.gradients,
            training_mode=self.training_mode,
            training_data=self.training_data,
            training_data_seconds=self.training_data_seconds if self.training_data else None,
            file=self.file,
            line=self.line,
        )


@dataclass
class Between:
    """The account of one process, by ``perf_counter``.

    Attributes:
        openings: seconds until each epoch's first batch was there, from where its loader was asked for an iterator.
        over: evaluations and checkpoints that came to their end.
        first_at: when the first batch, or the first training call without one, was asked for; None before.
        imports: seconds of imports between the import of torch and the first step; None where nobody looked.
    """

    openings: list[float] = field(default_factory=list)
    over: list[Interruption] = field(default_factory=list)
    first_at: float | None = None
    imports: float | None = None
    _opening: float | None = None

    def of(self, stage: str) -> list[Interruption]:
        return [each for each in self.over if each.stage == stage]

    def opens(self, now: float) -> None:
        """A loader of the training is asked for an iterator."""
        self._opening = now
        self.begins(now)

    def begins(self, now: float) -> None:
        """The training asks for a batch, or calls its model."""
        if self.first_at is None:
            self.first_at = now

    def has_come(self, now: float) -> float:
        """A batch of the training has come; seconds of the epoch's start where it is the first of one, else 0."""
        if self._opening is None:
            return 0.0
        seconds, self._opening = now - self._opening, None
        self.openings.append(seconds)
        return seconds


def steps_between(interruptions: list[Interruption], trained: int) -> float | None:
    """Training steps between two of them, on the mean; None where there was none after the first step.

    Where there is no second, it is the first one's own step: what comes at every so many steps comes at that one first.
    It is no less than the steps since then without one.

    Args:
        trained: steps so far.
    """
    steps = sorted({each.step for each in interruptions if each.step > 0})
    if not steps:
        return None
    return (steps[-1] - steps[0]) / (len(steps) - 1) if len(steps) > 1 else float(max(steps[0], trained - steps[0]))


def seconds_of_one(interruptions: list[Interruption]) -> float | None:
    """Mean seconds of what lies between two steps, such as an evaluation of two data sets; None where nothing did."""
    steps = {each.step for each in interruptions}
    return sum(each.seconds for each in interruptions) / len(steps) if steps else None
