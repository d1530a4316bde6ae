"""The document of ``autoopt compare``: two sides, a speedup, the level of quality, and the answer."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import SCHEMA_VERSION, Estimate, Plan
from autoopt.records.machine import Environment
from autoopt.records.record import Record

SideKind = Literal["build", "script", "plan", "patch", "run", "revision"]
Answer = Literal["faster", "not_slower", "slower", "no_difference", "undecided", "failed", "refused"]


class ComparedSide(Record):
    """One side. ``given``: as the command named it; ``commit``: of a revision; ``sources``: hashes of its files.

    Rates per second by the clock of the judging process. ``start_seconds``: from the start of a process to its steady
    state, without the steps that it trained in the meantime. ``metric``, ``loss``: of its weights after the steps of
    ``Learning``, by the baseline's evaluation and on its training batches, in a process of the judge's.
    """

    given: str
    kind: SideKind
    spec: str
    plan: Plan = Plan()
    commit: str | None = None
    sources: dict[str, str] = field(default_factory=dict)
    samples_per_second: float | None = None
    samples_per_step: float | None = None
    step_seconds: float | None = None
    start_seconds: float | None = None
    metric: float | None = None
    loss: float | None = None


class Learning(Record):
    """Quality of the candidate's training next to the baseline's, from trainings whose seed neither side knew.

    ``apart``: distance of the weights after ``steps`` steps, over the way that the baseline's training moved them;
    ``again``: the same of the baseline against itself; ``start_apart``: of those that both started from.
    ``measured_apart``: how far the steps whose time was taken moved both sides' weights apart, over how far they moved
    the baseline's; None where that was not seen. ``gradient_error``, ``gradient_bias``: largest at kept weights, over
    the spread between batches; None where weights alone decided. ``evaluation``: digest of what the evaluation reads,
    the same before and after; None where there is none, or where it does not read the same twice.
    """

    level: Literal["identical", "equivalent", "trained", "undecided"] = "undecided"
    detail: str = ""
    steps: int | None = None
    apart: float | None = None
    again: float | None = None
    start_apart: float | None = None
    measured_apart: float | None = None
    gradient_error: float | None = None
    gradient_bias: float | None = None
    evaluation: str | None = None


class Requirement(Record):
    """The requirement of ``--require``. ``margin``: how much slower still counts as not slower (0.03: 3 %)."""

    kind: Literal["faster", "not-slower"]
    margin: float = 0.0
    holds: bool = False

    @property
    def text(self) -> str:
        return "faster" if self.kind == "faster" else f"not-slower={100 * self.margin:g}%"


class LedgerEntry(Record):
    """A ledger's account of this ask. ``alpha``: the error that this ask may spend; ``left``: what later ones may.

    ``e_value``: the evidence for what was asked; ``needed``: how much of it this ask must reach, 1 over its alpha.
    ``head``: digest of all of the ledger's lines up to this ask's answer.
    """

    ask: int
    alpha: float
    total: float
    left: float
    e_value: float | None = None
    head: str = ""

    @property
    def needed(self) -> float:
        return 1.0 / self.alpha


class Compared(Record):
    """Candidate against baseline. Ratios are speedups: above 1 the candidate is faster.

    ``throughput``: of a step's samples, from paired blocks. ``planned_run``: of the run that the workload plans, with
    what each side pays once; None where no length is planned. ``whole``: of all steps over all seconds of the pairs,
    those between blocks included, without an interval: what is rare and long counts in it.
    ``control``: the baseline against itself.
    ``metric``: its name; ``metric_difference``: candidate less baseline; ``metric_note``: why there is none, where
    there is none. ``loss_batches``: of the training, that the sides' losses are means over. ``decision``: of the
    sequential test on throughput alone; ``reused``: the baseline's control is that of an earlier ask of the session.
    """

    schema_version: int = SCHEMA_VERSION
    autoopt_version: str
    created: str
    seconds: float
    command: str = ""
    baseline: ComparedSide
    candidate: ComparedSide
    environment: Environment | None = None
    seed: int
    answer: Answer
    reason: str
    throughput: Estimate | None = None
    whole: float | None = None
    control: Estimate | None = None
    planned_run: Estimate | None = None
    planned_steps: int | None = None
    pairs: tuple[float, ...] = ()
    decision: str | None = None
    reused: bool = False
    metric: str | None = None
    metric_difference: float | None = None
    metric_note: str = ""
    loss_batches: int | None = None
    learning: Learning = Learning()
    requirement: Requirement | None = None
    ledger: LedgerEntry | None = None
    warnings: tuple[str, ...] = ()
