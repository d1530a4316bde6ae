"""Documents of a whole run, process start to end: its measured parts, and what they come to together."""

from __future__ import annotations

from autoopt.records.record import Record


class Evaluated(Record):
    """The evaluations of a run as they were seen.

    ``samples``, ``batches``: that one reads; None where no loader gives them. ``gradients``: the model was called with
    gradients on; ``training_mode``: while it was in training mode. ``draws``: it takes random numbers for each batch.
    ``training_data``: it read the training's loader, for ``training_data_seconds``.
    ``file``, ``line``: where the model is called; ``calls``: how often, None where nobody counted. ``busiest``: the
    file and line that take most of it, with their share. ``step``: the training step after which it began.
    """

    step: int
    seconds: float
    samples: int | None = None
    batches: int | None = None
    gradients: bool = False
    training_mode: bool = False
    draws: bool = False
    training_data: bool = False
    training_data_seconds: float | None = None
    file: str | None = None
    line: int | None = None
    calls: int | None = None
    busiest: tuple[str, int] | None = None
    busiest_share: float | None = None


class RunParts(Record):
    """Measured parts of a whole run of a plan. Seconds; None: not measured.

    ``imports_seconds``: the interpreter and what it imports. ``build_seconds``: from there to the first batch that is
    asked for. ``first_batch_seconds``: until that batch is there, workers started. ``warm_up_seconds``: what the first
    steps take beyond steady ones. ``step_seconds``: a steady step, evaluations and checkpoints apart.
    ``epoch_seconds``: with which each later epoch begins (workers started, its first batch), beyond a usual wait.
    ``evaluation_seconds``, ``checkpoint_seconds``: of one; ``evaluate_every``, ``checkpoint_every``: steps between two.
    ``end_seconds``: from the last step or evaluation to the end of the process. ``steps``: of the planned run.
    ``ends_by_result``: a comparison, such as of a metric with a target, may end it before them. ``passed_over``:
    batches that are read before the first one that is trained on, in so many seconds.
    """

    imports_seconds: float | None = None
    build_seconds: float | None = None
    first_batch_seconds: float | None = None
    warm_up_seconds: float | None = None
    step_seconds: float | None = None
    steps: int | None = None
    steps_per_epoch: int | None = None
    epoch_seconds: float | None = None
    evaluation_seconds: float | None = None
    evaluate_every: float | None = None
    checkpoint_seconds: float | None = None
    checkpoint_every: float | None = None
    end_seconds: float | None = None
    evaluations: tuple[Evaluated, ...] = ()
    ends_by_result: bool = False
    passed_over: int = 0
    passed_over_seconds: float = 0.0

    @property
    def once_seconds(self) -> float:
        """What a run of any length pays once, as far as it is known."""
        parts = (self.imports_seconds, self.build_seconds, self.first_batch_seconds, self.warm_up_seconds)
        return sum(seconds or 0.0 for seconds in (*parts, self.end_seconds))

    @property
    def samples_per_evaluation(self) -> float:
        """On the mean, of what lies between two steps; 0 where none were counted."""
        steps = len({one.step for one in self.evaluations}) or 1
        return sum(one.samples or 0 for one in self.evaluations) / steps


class RunPart(Record):
    """One part of a whole run. ``each``: seconds of one occurrence, of ``count``; ``share``: of the whole run."""

    name: str
    seconds: float
    each: float
    count: float
    share: float


class WholeRun(Record):
    """Seconds of a whole run of ``steps`` training steps, put together from its parts, in the order of their time.

    ``missing``: parts that were not measured, and count as nothing.
    """

    steps: float
    seconds: float
    parts: tuple[RunPart, ...]
    missing: tuple[str, ...] = ()

    def part(self, name: str) -> RunPart | None:
        """The part of that name; None where it was not measured, or does not occur."""
        return next((part for part in self.parts if part.name == name), None)
