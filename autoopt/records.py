"""The documents in which the phases meet: frozen, validated, JSON both ways.

Everything that result.json, plan.json and journal.jsonl hold is defined here. The report
imports this module alone; it needs no torch. ``None`` means "not measured", never ``0``.
Times are seconds, sizes bytes, rates per second; a ratio is a speedup (above 1 is faster).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SCHEMA_VERSION = 1

JsonDict = dict[str, Any]


class Record(BaseModel):
    """Base of all documents: frozen; unknown fields are ignored (a newer autoopt may add some)."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Estimate(Record):
    """A value with its interval. ``n``: the independent repeats that it rests on."""

    value: float
    low: float
    high: float
    confidence: float = 0.95
    n: int

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate needs low <= value <= high, got {self.low}, {self.value}, {self.high}")
        return self


class Verdict(StrEnum):
    """What became of a trial."""

    KEPT = "kept"
    NO_GAIN = "no_gain"
    HARMFUL = "harmful"
    QUALITY_LOST = "quality_lost"
    INCONCLUSIVE = "inconclusive"
    FAILED = "failed"
    NOT_APPLICABLE = "not_applicable"
    NOT_TRIED = "not_tried"


class StopReason(StrEnum):
    """Why the search ended."""

    DIMINISHING_RETURNS = "diminishing_returns"
    AT_THE_CEILING = "at_the_ceiling"
    BUDGET = "budget"
    EXHAUSTED = "exhausted"
    INTERRUPTED = "interrupted"


class Change(Record):
    """A strategy with a setting."""

    strategy: str
    setting: JsonDict = Field(default_factory=dict)


class Plan(Record):
    """Changes, in the order in which they are applied. The empty plan is the baseline."""

    changes: tuple[Change, ...] = ()

    def names(self) -> tuple[str, ...]:
        return tuple(change.strategy for change in self.changes)

    @property
    def key(self) -> str:
        """The plan as text: equal for equal plans, and usable as a dictionary's key."""
        return self.model_dump_json()

    def setting(self, strategy: str) -> JsonDict | None:
        """The setting that this plan gives to a strategy, or None where it does not hold it."""
        return next((c.setting for c in self.changes if c.strategy == strategy), None)

    def with_change(self, change: Change) -> Plan:
        """This plan with the change added, in place of the same strategy's earlier one."""
        if change.strategy in self.names():
            return Plan(changes=tuple(change if c.strategy == change.strategy else c for c in self.changes))
        return Plan(changes=(*self.changes, change))

    def without(self, strategy: str) -> Plan:
        return Plan(changes=tuple(c for c in self.changes if c.strategy != strategy))


class PlanDocument(Record):
    """plan.json."""

    schema_version: Literal[1] = 1
    changes: tuple[Change, ...] = ()


class Percentiles(Record):
    """Seconds of one training step."""

    p50: float
    p95: float
    p99: float


class CurvePoint(Record):
    """One evaluation in a training run."""

    step: int
    seconds: float
    metric: float | None
    train_loss: float | None = None


class Curve(Record):
    """A training run as its evaluations saw it."""

    seed: int
    points: tuple[CurvePoint, ...] = ()
    reached: bool | None = None
    seconds_to_target: float | None = None
    steps_to_target: int | None = None


class Configuration(Record):
    """A plan and what was measured of it."""

    plan: Plan
    samples_per_second: float | None = None
    step_seconds: Percentiles | None = None
    time_to_target_seconds: Estimate | None = None
    time_to_target_source: Literal["measured", "modelled"] | None = None
    fixed_seconds: float | None = None
    evaluation_seconds: float | None = None
    steps_to_target: int | None = None
    metric: float | None = None
    peak_memory_bytes: int | None = None
    peak_host_memory_bytes: int | None = None
    device_utilization: float | None = None
    cpu_utilization: float | None = None
    flops_per_second: float | None = None
    mfu: float | None = None
    energy_joules_per_step: float | None = None
    cost_to_target: float | None = None
    curves: tuple[Curve, ...] = ()


class Resource(StrEnum):
    """What a stage occupies."""

    STORAGE = "storage"
    WORKER = "worker"
    HOST = "host"
    LINK = "link"
    DEVICE = "device"


class Stage(Record):
    """One stage of the pipeline, in seconds per training step.

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
    cpu_seconds: float | None = None
    note: str = ""


class Location(Record):
    """A place in the user's source."""

    file: str
    line: int


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


class Simulation(Record):
    """What the pipeline graph knows beyond its stages, so that a saved round can be simulated again.

    ``compute_by_threads``: seconds of one step on a cached batch by number of compute threads (CPU).
    ``handover_seconds``: what a worker spends to hand over one step's batches, ``receive_seconds``
    what the training process spends to take them. ``launches``: operators or kernels in one step.
    ``host_seconds``: what the training process needs to issue one step to the device.
    """

    device: str = "cpu"
    cores: int = 1
    threads: int = 1
    workers: int = 0
    prefetch: int | None = None
    accumulation: int = 1
    samples: int = 1
    blocking_copy: bool = True
    compute_by_threads: dict[int, float] = Field(default_factory=dict)
    handover_seconds: float = 0.0
    receive_seconds: float = 0.0
    launches: int | None = None
    host_seconds: float | None = None
    sample_spread: float | None = None
    worker_share: float | None = None
    compute_share: float | None = None
    parallel_share: float | None = None
    memory_used: float | None = None


class Round(Record):
    """What simplify found of the incumbent."""

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
    operators: tuple[Operator, ...] = ()
    simulation: Simulation | None = None
    notes: tuple[str, ...] = ()


class Quality(Record):
    """What the quality gate saw. ``difference`` is candidate less baseline in the metric's unit."""

    method: Literal["losses", "loss_path", "metric", "not_tested"]
    passed: bool | None = None
    metric: str | None = None
    baseline: float | None = None
    candidate: float | None = None
    difference: Estimate | None = None
    margin: float | None = None
    largest_loss_difference: float | None = None
    steps: int | None = None
    seeds: int | None = None
    detail: str = ""


class Trial(Record):
    """One thing that was tried, or why it was not.

    ``base`` is ``"baseline"`` or the id of the trial whose change made the incumbent.
    """

    id: int
    round: int
    strategy: str
    setting: JsonDict = Field(default_factory=dict)
    companions: tuple[Change, ...] = ()
    base: str = "baseline"
    verdict: Verdict
    reason: str = ""
    risk: str | None = None
    predicted: Estimate | None = None
    throughput: Estimate | None = None
    time_to_target: Estimate | None = None
    quality: Quality | None = None
    peak_memory_bytes: int | None = None
    seconds: float | None = None
    log: str | None = None
    ratios: tuple[float, ...] = ()
    samples_per_second: float | None = None
    finished_at: float | None = None


class Ablation(Record):
    """What a kept change is worth: the final plan against itself without it, and it alone on the baseline."""

    strategy: str
    setting: JsonDict = Field(default_factory=dict)
    without: Estimate | None = None
    alone: Estimate | None = None


class Peaks(Record):
    """What this machine reached when it was measured, per second or in seconds.

    Shares are speeds under load over speeds alone: ``core_share_under_load`` of a loader worker while
    workers and compute threads fill the cores twice, ``compute_share_under_load`` of the compute threads
    then, ``parallel_share`` of one process while every core has one of its own.
    """

    matmul_fp32_flops_per_second: float | None = None
    matmul_tf32_flops_per_second: float | None = None
    matmul_bf16_flops_per_second: float | None = None
    matmul_fp16_flops_per_second: float | None = None
    memory_bytes_per_second: float | None = None
    copy_pageable_to_device_bytes_per_second: float | None = None
    copy_pinned_to_device_bytes_per_second: float | None = None
    copy_pageable_from_device_bytes_per_second: float | None = None
    copy_pinned_from_device_bytes_per_second: float | None = None
    launch_seconds: float | None = None
    storage_bytes_per_second: float | None = None
    core_share_under_load: float | None = None
    compute_share_under_load: float | None = None
    parallel_share: float | None = None
    memory_bytes_per_second_by_size: dict[int, float] = Field(default_factory=dict)
    measured_at: str | None = None


class Environment(Record):
    """The machine and what runs on it."""

    python: str
    torch: str | None = None
    cuda: str | None = None
    device: str
    device_name: str | None = None
    device_memory_bytes: int | None = None
    cpu: str | None = None
    cores: int | None = None
    threads: int | None = None
    ram_bytes: int | None = None
    os: str | None = None
    git_commit: str | None = None
    peaks: Peaks = Field(default_factory=Peaks)
    load: float | None = None
    compiler: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)


class WorkloadSummary(Record):
    """``workload`` of result.json."""

    spec: str
    name: str
    parameters: int | None = None
    train_samples: int | None = None
    batch_size: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None


class Objective(Record):
    """What the search is after."""

    metric: str | None
    mode: Literal["max", "min"]
    target: float | None
    target_source: Literal["user", "baseline"]
    tolerance: float
    min_gain: float
    price_per_hour: float | None = None


class Noise(Record):
    """The A/A control: the baseline against itself. ``floor``: the gain below which nothing is believed.

    ``process_sd``: how much two processes of one program differ (standard deviation of the log ratio),
    ``process_dof``: how many independent pairs of processes that rests on; ``block_sd``: how much one
    pair of blocks scatters inside a pair of processes.
    """

    aa_ratio: Estimate | None = None
    floor: float | None = None
    ratios: tuple[float, ...] = ()
    seed_noise: float | None = None
    process_sd: float | None = None
    process_dof: float | None = None
    block_sd: float | None = None


class Speedup(Record):
    """The final plan against the baseline.

    ``time_to_target`` of a plan that takes the same steps by its risk classes is at equal steps, which no
    seed moves; ``trained`` is the plain ratio of whole trainings, with the spread of seeds in its interval.
    """

    time_to_target: Estimate | None = None
    trained: Estimate | None = None
    throughput: Estimate | None = None
    end_to_end_verified: bool = False
    detail: str = ""


class BreakEven(Record):
    """How many planned runs pay for the search."""

    search_seconds: float
    runs: float | None = None


class Stop(Record):
    """Why the search ended."""

    reason: StopReason
    detail: str = ""


class Advice(Record):
    """What a person must change by hand."""

    title: str
    evidence: str
    file: str | None = None
    line: int | None = None
    suggestion: str


class Snippets(Record):
    """A kept change as a person would write it, per way of training. ``None``: cannot be expressed there."""

    strategy: str
    setting: JsonDict = Field(default_factory=dict)
    title: str = ""
    pytorch: str | None = None
    lightning: JsonDict | None = None
    transformers: JsonDict | None = None
    accelerate: JsonDict | None = None
    risk: str | None = None
    stages: tuple[str, ...] = ()


class Reproduce(Record):
    """How to get this result again."""

    command: str = ""
    seed: int = 0
    strategies: tuple[str, ...] = ()
    run_directory: str | None = None


class Result(Record):
    """result.json, the only thing that the report reads.

    ``quality``: the final plan's trainings against the baseline's, from the verification.
    """

    schema_version: Literal[1] = 1
    autoopt_version: str
    created: str
    finished: str | None = None
    seconds: float
    budget_seconds: float
    workload: WorkloadSummary
    environment: Environment
    objective: Objective
    noise: Noise
    baseline: Configuration
    best: Configuration
    speedup: Speedup
    break_even: BreakEven
    rounds: tuple[Round, ...] = ()
    trials: tuple[Trial, ...] = ()
    ablation: tuple[Ablation, ...] = ()
    stop: Stop
    advice: tuple[Advice, ...] = ()
    warnings: tuple[str, ...] = ()
    snippets: tuple[Snippets, ...] = ()
    reproduce: Reproduce = Field(default_factory=Reproduce)
    not_measured: tuple[str, ...] = ()
    quality: Quality | None = None


class Prediction(Record):
    """What a strategy expects of one setting before anything is tried, or why it does not apply."""

    strategy: str
    setting: JsonDict = Field(default_factory=dict)
    predicted: Estimate | None = None
    applies: bool = True
    reason: str = ""


class Profile(Record):
    """What ``autoopt profile`` writes: where the time goes, the ceilings, and what to expect."""

    schema_version: Literal[1] = 1
    autoopt_version: str
    created: str
    seconds: float | None = None
    workload: WorkloadSummary
    environment: Environment
    baseline: Configuration
    round: Round
    predictions: tuple[Prediction, ...] = ()
    advice: tuple[Advice, ...] = ()
    warnings: tuple[str, ...] = ()
    reproduce: Reproduce = Field(default_factory=Reproduce)
