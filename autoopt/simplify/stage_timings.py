"""Timings of every stage alone, as a trial's process measured them: plain data from which the round is computed."""

from __future__ import annotations

from dataclasses import field

from autoopt.records import Deeper, Operator, Record, Simulation

INPUT = ("storage", "preparation", "collate")
"""Stages that make batches."""
DEFAULT_PREFETCH = 2
"""Batches that each worker of torch's DataLoader prepares ahead."""
SLOWEST = 0.02
"""Least speed over the speed alone, however many compete."""


class Timing(Record):
    """One microbenchmark, repeated. ``seconds``: the median; ``spread``: half the distance of the quartiles, over it.

    ``cpu_seconds``: CPU time of the calling thread. ``wait_seconds``: neither on a core nor waiting for one: storage,
    network, sleep. ``reference``: seconds of the speed reference (``simplify.drift``) while it was timed, to which the
    repeats were normalized; ``sensitivity``: how far ``seconds`` follow it; None where that was not read.
    """

    seconds: float
    spread: float = 0.0
    cpu_seconds: float | None = None
    wait_seconds: float | None = None
    reference: float | None = None
    sensitivity: float | None = None

    @property
    def cpu(self) -> float:
        """CPU seconds; those of the clock where they were not read."""
        return self.seconds if self.cpu_seconds is None else self.cpu_seconds


class Overlap(Timing):
    """A step fed by so many loader workers, with so many compute threads, as it ran."""

    workers: int
    threads: int


class InputTimings(Record):
    """The input side, measured in a forked process so that nothing of it stays behind.

    ``sample``: one sample of the dataset, one process, one thread. ``collate``: one micro-batch from samples that are
    there. ``loader``: seconds per micro-batch of the user's own loader with nobody using the batches; None where it has
    workers. ``handover``: a ready micro-batch from one worker to the training process, as wall-clock; ``receive``: the
    part of it that the training process spends. ``deeper``, ``waiting``: the sample opened, by a core's work and by
    waiting, seconds per sample; ``collating``: the collate function, per micro-batch.
    """

    sample: Timing | None = None
    sample_spread: float | None = None
    collate: Timing | None = None
    loader: Timing | None = None
    handover: Timing | None = None
    receive: Timing | None = None
    deeper: tuple[Deeper, ...] = ()
    waiting: tuple[Deeper, ...] = ()
    collating: tuple[Deeper, ...] = ()
    notes: tuple[str, ...] = ()


class StageTimings(Simulation):
    """Every stage alone, and what the pipeline graph knows beyond stages, as far as that follows from no timing.

    Times are per micro-batch unless said otherwise.

    ``transfer``: a batch to the device, as the training moves it; ``pin``: pinning on the host. ``forward``: forward
    and loss. ``backward``: what both directions take beyond it, alternately. ``optimizer``: one optimizer step on
    cached gradients, clipping and zeroing included. ``compute``: one whole optimizer step on cached batches that are on
    the device. ``host``: what that step takes beyond forward, backward and optimizer, alternately. ``overlaps``: steps
    that were fed by workers for real. ``issue``: seconds in which the training process has issued such a step,
    ``issue_update``: of them, the optimizer's. ``evaluate``: one whole evaluation, scaled from a few of its batches or
    as a script made it; ``evaluation_samples``: that it reads; ``checkpoint``: one, to the disk.
    ``deeper``: below a stage, by its name, seconds per micro-batch, of the optimizer per step. ``reference``: of the
    machine's speed while the training ran, before and after the microbenchmarks; None on a device. ``padding``: share
    of padding in the batches that were computed on, None where they hold no sequences.
    """

    pin_memory: bool = False
    batch_size: int
    batch_bytes: int = 0
    optimizer_bytes: int = 0
    allowed_precisions: tuple[str, ...] = ("fp32",)
    inputs: InputTimings = InputTimings()
    pin: Timing | None = None
    transfer: Timing | None = None
    forward: Timing | None = None
    backward: Timing | None = None
    optimizer: Timing | None = None
    compute: Timing | None = None
    host: Timing | None = None
    overlaps: tuple[Overlap, ...] = ()
    issue: Timing | None = None
    issue_update: Timing | None = None
    evaluate: Timing | None = None
    evaluation_samples: float | None = None
    evaluate_every: int | None = None
    checkpoint: Timing | None = None
    checkpoint_every: int | None = None
    operators: tuple[Operator, ...] = ()
    operators_forward_share: float | None = None
    deeper: dict[str, tuple[Deeper, ...]] = field(default_factory=dict)
    padding: float | None = None
    reference: float | None = None
    notes: tuple[str, ...] = ()


def scaled(chain: tuple[Deeper, ...], times: float) -> tuple[Deeper, ...]:
    """What lies below a stage, with so many times the seconds."""
    return tuple(item.model_copy(update={"seconds": item.seconds * times}) for item in chain)
