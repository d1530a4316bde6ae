"""Messages of a trial's process to the parent: typed documents, JSON on the pipe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from autoopt.records import Curve, CurvePoint, Record
from autoopt.records.facts import WorkloadFacts

NO_WAIT = 0.03
"""Share of a block's time for its batches up to which the loader keeps up: a batch that is ready takes time, too."""


class Block(Record):
    """A short run of training steps. Seconds are wall-clock, without the ramp after a thaw.

    ``samples``: trained on; None where they cannot be counted, so that a step is the unit of all that divides by them.
    ``stage_seconds``: exposed seconds by stage over the whole block; they sum to ``seconds`` with
    ``other``. ``losses``: one per optimizer step, mean over its micro-batches; None where not finite.
    ``foreign_cpu_seconds``: CPU seconds of other processes and stolen time during the block.
    ``allocated_memory_bytes``: of ``peak_memory_bytes``, what tensors held at once.
    ``late_seconds``: paid once, by compiling again or by a search; in none of the other times.
    ``page_faults``: pages that the trial's main process touched first, which the system had to give it (minor faults).
    ``stalled_seconds``: in which a thread of it waited for a core; ``worker_cpu_seconds``: of the processes below it.
    """

    steps: int
    samples: int | None
    seconds: float
    stage_seconds: dict[str, float] = field(default_factory=dict)
    step_seconds: tuple[float, ...] = ()
    losses: tuple[float | None, ...] = ()
    cpu_seconds: float | None = None
    foreign_cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    allocated_memory_bytes: int | None = None
    peak_host_memory_bytes: int | None = None
    allocation_retries: int = 0
    recompilations: int = 0
    late_seconds: float = 0.0
    first_step: int = 0
    page_faults: int | None = None
    stalled_seconds: float | None = None
    worker_cpu_seconds: float | None = None

    @property
    def kept_up(self) -> bool:
        """Whether the loader kept up with the steps."""
        return self.stage_seconds.get("data", 0.0) <= NO_WAIT * self.seconds


class Startup(Record):
    """Start-up of a trial: its cost before the steady state. ``fixed_seconds`` is what a real run pays once.

    ``first_step``: of the training, whose loss is the first of ``losses``; a script stands at the end of one by then.
    ``first_batch_seconds``: of ``build_seconds`` (of a ``build()``: of the warm-up), until the first batch was there;
    ``epoch_seconds``: with which each later epoch begins beyond a usual wait, workers started anew. None: no epochs.
    ``compiler``: what ``torch.compile`` had trouble with, a sentence; None where it had none or was not asked.
    ``cycle``: steps after which step times repeat: those of a loader with workers that training waits for, and of what
    comes once in so many steps.
    """

    build_seconds: float
    setup_seconds: float
    warmup_seconds: float
    warmup_steps: int
    fixed_seconds: float
    losses: tuple[float | None, ...] = ()
    first_step: int = 0
    compiler: str | None = None
    cycle: int = 1
    first_batch_seconds: float | None = None
    epoch_seconds: float | None = None

    @property
    def steady_seconds(self) -> float:
        """From the start of the process to steady steps."""
        return self.build_seconds + self.setup_seconds + self.warmup_seconds


class Moved(Record):
    """Parameters of a training between two readings of sampled elements of them, by their place in the model's order.

    ``first_step``, ``step``: optimizer steps at both looks. ``parameters``: how many there are. ``still``: those of
    which no element moved, with their ``names``; ``slow``: those of which half moved at most, the still ones included.
    """

    first_step: int
    step: int
    parameters: int
    still: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    slow: tuple[int, ...] = ()


WHOLE_RUN, ENDED = "whole run", "ended"
"""How a script ended that nothing listened to, and how one did that came to its end while it was listened to."""


class TrainingRun(Record):
    """One training from the first step to the target or the limit, evaluations included.

    ``evaluated_samples``: those that the latest evaluation read. ``once_seconds``: of training, for what is
    paid once (warming up, compiling, searches); part of ``fixed_seconds`` and of ``training_seconds``.
    ``stopped``: what ended it; :data:`ENDED` of a script that came to its own end, :data:`WHOLE_RUN` of one that ran by
    itself from the start of its process to its end, of which only the seconds and the metric at the end are known.
    ``kept``: files of the weights at its start, middle and end, where they were to be kept. ``metric_patterns``:
    patterns of what may be the metric in the lines that a script printed at its evaluations, where no metric was named;
    the curve is that of one that stands alone.
    ``past``: evaluations after the target was confirmed, where it was to be trained on; ``curve`` ends before them.
    ``moves``: which parameters moved, from evaluation to evaluation.
    ``trained_parameters``: how many have a gradient.
    """

    seed: int
    curve: Curve
    seconds: float
    training_seconds: float
    evaluation_seconds: float
    evaluations: int
    evaluated_samples: int | None = None
    steps: int
    samples: int | None
    fixed_seconds: float
    once_seconds: float = 0.0
    reached: bool | None
    finite: bool = True
    losses: tuple[float | None, ...] = ()
    peak_memory_bytes: int | None = None
    allocated_memory_bytes: int | None = None
    peak_host_memory_bytes: int | None = None
    stopped: str = "target"
    kept: tuple[str, ...] = ()
    metric_patterns: tuple[str, ...] = ()
    past: tuple[CurvePoint, ...] = ()
    moves: tuple[Moved, ...] = ()
    trained_parameters: int | None = None


class EpochRead(Record):
    """Samples of one epoch that a probe read: how many, how many different ones, and met in an earlier epoch."""

    samples: int
    distinct: int
    seen_before: int


def samples_read(epochs: Iterable[EpochRead]) -> int:
    """Samples that a probe read in all."""
    return sum(epoch.samples for epoch in epochs)


class EpochOrder(Record):
    """The samples of an epoch as the loader's sampler orders them, without reading one.

    ``length``: of the dataset; ``samples``: that the batches of an epoch hold; ``distinct`` of them; ``repeats``: the
    second epoch has the order of the first.
    """

    length: int
    samples: int
    distinct: int
    repeats: bool


class Probe(Record):
    """The probe of a plan (``autoopt.benchmark.probe``). ``file``: its arrays, in the run's folder of probes.

    ``digests``: of the batches of each trained step; a script's read steps follow.
    ``orders``: the same of their whole numbers alone (labels, indices), which augmentation leaves as they are; of the
    indices that a script's sampler drew, where they hold none.
    ``rolled``: one digest of all batches so far, after each sixteen steps that were trained or only read.
    ``skipped_by_scaler``: steps that a gradient scaler left out. ``points``: sets of weights at which gradients
    and ``metrics`` were taken. ``gradient_digests``: of the batches of the gradients, where each process reads its
    own (a script); ``gradient_samples``: of what models are called with, in however many calls of a step.
    ``evaluation_digest``: of what such an evaluation reads: metrics of other data are not compared. ``unseen``: the
    part of the batches that no digest could be taken of; empty: none. ``kept``: files of the weights that gradients
    were taken at, where they are those of this very probe's ``own_steps`` first steps, or a script's present ones.
    ``trained``: steps that were trained in a row, the recorded ones and those after them; ``until``: those it should
    have been. ``crossed``: the step at which a script's window across the end of an epoch begins. ``own_metric``: of
    the recorded steps' own weights. ``rates_ahead``: learning rates to the planned end, by step (by the epoch's
    negative number, where the scheduler counts these), as it alone gives them. ``order``: of an epoch by the sampler
    alone. ``dropouts``: shares that dropout layers leave out. ``waiting``, ``computing``: seconds of a script's
    recorded step, on the mean: until its batch was there, and those after that.
    """

    file: str
    steps: int
    kept: tuple[str, ...] = ()
    own_steps: int = 0
    digests: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()
    rolled: tuple[str, ...] = ()
    losses: tuple[float | None, ...] = ()
    learning_rates: tuple[float, ...] = ()
    skipped_by_scaler: tuple[int, ...] = ()
    epochs: tuple[EpochRead, ...] = ()
    points: int = 0
    metrics: tuple[float | None, ...] = ()
    evaluated_samples: int | None = None
    evaluation_digest: str = ""
    gradient_digests: tuple[str, ...] = ()
    gradient_samples: tuple[str, ...] = ()
    unseen: str = ""
    trained: int = 0
    until: int = 0
    crossed: int = 0
    own_metric: float | None = None
    rates_ahead: tuple[tuple[int, float], ...] = ()
    order: EpochOrder | None = None
    dropouts: tuple[float, ...] = ()
    waiting: float | None = None
    computing: float | None = None
    seconds: float = 0.0


class Ready(Record):
    """A trial's first message: it is built and set up."""

    facts: WorkloadFacts
