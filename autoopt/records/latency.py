"""The document of ``autoopt latency``: ways of serving a trained model, what each costs and loses, the one taken."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import SCHEMA_VERSION, Estimate
from autoopt.records.machine import Environment
from autoopt.records.record import JsonDict, Record

Holds = Literal["yes", "no", "undecided"]


class Judged(Record):
    """The metric of a model on the validation data.

    ``each``: of every sample, where the metric is their mean; ``resampled``: on resamples that are the same for every
    variant, where it is not; ``note``: why there is neither.
    """

    metric: float
    samples: int
    each: tuple[float, ...] = ()
    resampled: tuple[float, ...] = ()
    note: str = ""


class Load(Record):
    """Requests under a number of clients, pooled over processes: seconds, and requests per second."""

    clients: int
    requests: int
    p50: float
    p95: float
    p99: float
    throughput: float


class ColdStart(Record):
    """Seconds that a process pays before it answers. ``prepare_seconds``: once for all processes, or None.

    ``load_seconds``: from a built model, or the artefact, to what answers; ``first_seconds``: the first request.
    """

    prepare_seconds: float | None = None
    load_seconds: float
    first_seconds: float


class Served(Record):
    """One way of serving.

    ``p95``, ``ratio``: over fresh processes, under the clients of the limit; the ratio is a speedup of the P95.
    ``drop``: part of the baseline's metric that is lost. ``cost_seconds``: of the machine for a thousand requests at
    its highest rate, ``cost`` the same at the given price. ``fits``, ``keeps``: whether limit and quality hold.
    """

    name: str
    variant: JsonDict = field(default_factory=dict)
    status: Literal["measured", "screened", "failed", "not_applicable", "not_tried"]
    reason: str = ""
    p95: Estimate | None = None
    ratio: Estimate | None = None
    screened_p95: float | None = None
    loads: tuple[Load, ...] = ()
    metric: float | None = None
    drop: Estimate | None = None
    cold_start: ColdStart | None = None
    model_bytes: int | None = None
    peak_memory_bytes: int | None = None
    cost_seconds: float | None = None
    cost: float | None = None
    fits: Holds | None = None
    keeps: Holds | None = None
    front: bool = False
    knee: bool = False

    @property
    def p95_text(self) -> str:
        return self.p95.text(".3g", " ms", 1e3) if self.p95 is not None else "not measured"

    @property
    def drop_text(self) -> str:
        return self.drop.text(".2f", " %", 100.0) if self.drop is not None else "not measured"


class Acceptance(Record):
    """The acceptance test of what was exported, run in a process of its own in which autoopt cannot be imported."""

    command: str
    exit_code: int | None
    output: str = ""


class Latency(Record):
    """latency.json. Times are seconds; ``holds``: whether a variant is verified to meet limit and quality."""

    schema_version: int = SCHEMA_VERSION
    autoopt_version: str
    created: str
    seconds: float
    budget_seconds: float
    workload: str
    weights: str
    seed: int
    environment: Environment | None = None
    limit_seconds: float | None = None
    max_drop: float
    clients: int
    batch: JsonDict = field(default_factory=dict)
    lengths: JsonDict = field(default_factory=dict)
    requests: int
    metric: str
    mode: Literal["max", "min"]
    validation_samples: int
    price_per_hour: float | None = None
    variants: tuple[Served, ...] = ()
    chosen: str | None = None
    holds: Holds | None = None
    reason: str = ""
    control: Estimate | None = None
    exported: str | None = None
    acceptance: Acceptance | None = None
    warnings: tuple[str, ...] = ()

    def variant(self, name: str) -> Served | None:
        return next((each for each in self.variants if each.name == name), None)
