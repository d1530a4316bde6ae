"""Documents of simplify: stages with their ceilings, the graph, the chain below the bottleneck."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import Plan
from autoopt.records.record import Record, StrEnum
from autoopt.records.whole_run import WholeRun


class Resource(StrEnum):
    """Resource that a stage occupies."""

    STORAGE = "storage"
    WORKER = "worker"
    HOST = "host"
    LINK = "link"
    DEVICE = "device"


class Stage(Record):
    """One stage of the pipeline, in seconds per training step; of what comes between steps, its share for each step.

    ``seconds`` is the stage alone, ``exposed_seconds`` what it adds to the running step,
    ``ceiling_seconds`` its theoretical best on this machine, ``gap`` their quotient
    ``seconds / ceiling_seconds``, ``parallel`` how many run at once: ``seconds`` is what the stage
    takes with all of them at work, so that the work of one step is ``seconds * parallel``.
    """

    name: str
    resource: Resource
    seconds: float
    exposed_seconds: float | None = None
    ceiling_seconds: float | None = None
    gap: float | None = None
    parallel: int = 1
    measured: bool = True
    note: str = ""


class Deeper(Record):
    """A link of the chain that opens the bottleneck: a transform, a submodule, an operator, a line."""

    name: str
    kind: Literal["stage", "transform", "line", "module", "operator"]
    seconds: float
    ceiling_seconds: float | None = None
    gap: float | None = None
    file: str | None = None
    line: int | None = None
    note: str = ""


class Operator(Record):
    """One kind of operator of the step on the roofline: FLOPs and bytes per step."""

    name: str
    seconds: float
    flops: float | None = None
    bytes: float | None = None
    ceiling_seconds: float | None = None
    calls: int | None = None
    kind: Literal["matmul", "elementwise", "memory", "other"] | None = None


class Contention(Record):
    """Speeds while ``workers`` prepare samples next to a training step of ``threads`` compute threads, over those
    alone.

    ``prepare``: of one worker; ``step``: of the step, None where there was none (``threads`` 0).
    """

    threads: int
    workers: int
    prepare: float
    step: float | None = None


class Fed(Record):
    """Seconds of a step that ran fed by so many loader workers, with so many compute threads.

    ``spread``: half the distance of the quartiles of its repeats, over the seconds.
    """

    workers: int
    threads: int
    seconds: float
    spread: float = 0.0


class Simulation(Record):
    """Knowledge of the pipeline graph beyond its stages, so that a saved round can be simulated again.

    ``compute_by_threads``: seconds of one step on a cached batch by number of compute threads (CPU).
    ``handover_seconds``: what a worker spends to hand over one step's batches, ``receive_seconds``
    what the training process spends to take them. ``launches``: operators or kernels in one step.
    ``update_issue_seconds``: what the training process needs to issue the optimizer's step to the device.
    ``contention``: for the cores between this workload's preparation and its step, where it was measured; ``fed``:
    steps that were tried with other numbers of loader workers or threads. ``cold_ratio``: a batch that the training
    process prepares between two steps, over one prepared after another; ``wakeup_ratio``: a step on the CPU after a
    pause of ``pause_seconds``, over one after another step; 1 where they were not measured. ``doubled``: forward and
    backward of twice the batch over those of one. ``memory_used``: share of the device's.
    """

    device: str = "cpu"
    cores: int = 1
    threads: int = 1
    workers: int = 0
    prefetch: int | None = None
    accumulation: int = 1
    blocking_copy: bool = True
    compute_by_threads: dict[int, float] = field(default_factory=dict)
    handover_seconds: float = 0.0
    receive_seconds: float = 0.0
    launches: int | None = None
    update_issue_seconds: float | None = None
    sample_spread: float | None = None
    contention: tuple[Contention, ...] = ()
    fed: tuple[Fed, ...] = ()
    cold_ratio: float = 1.0
    wakeup_ratio: float = 1.0
    pause_seconds: float = 0.0
    doubled: float | None = None
    memory_used: float | None = None


class Round(Record):
    """A round: the stages of the incumbent as simplify found them.

    ``whole_run``: the planned run, process start to end, put together from its parts; None where its length is not
    known. ``own``: functions of the user's that take a share of a step outside of model, backward pass, optimizer and
    loader, each with its costliest line; none where they were not looked for.
    """

    index: int
    plan: Plan
    step_seconds: float
    stages: tuple[Stage, ...]
    edges: tuple[tuple[str, str], ...] = ()
    critical_path: tuple[str, ...] = ()
    bottleneck: str | None = None
    predicted_step_seconds: float | None = None
    simulation_error: float | None = None
    ceiling_step_seconds: float | None = None
    bottleneck_class: str | None = None
    deeper: tuple[Deeper, ...] = ()
    own: tuple[Deeper, ...] = ()
    operators: tuple[Operator, ...] = ()
    simulation: Simulation | None = None
    whole_run: WholeRun | None = None
    notes: tuple[str, ...] = ()
