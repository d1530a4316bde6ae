"""result.json and profile.json."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.account import Account
from autoopt.records.base import Change, Estimate, StopReason
from autoopt.records.distributed import Scaling
from autoopt.records.drift import Drift
from autoopt.records.machine import Environment
from autoopt.records.measured import Ablation, Configuration, Decided, Noise, Quality, Sharing, Speedup, Trial
from autoopt.records.model_scaling import ModelScaling
from autoopt.records.pipeline import Round
from autoopt.records.record import JsonDict, Record
from autoopt.records.script import ScriptPatch, Sites
from autoopt.records.tuning import Tuning


class WorkloadSummary(Record):
    """``workload`` of result.json.

    ``processes``: that a script's launcher starts; ``batch_size`` is that of each. 1 of all other workloads, whose
    processes are a change of their plan.
    """

    spec: str
    name: str
    parameters: int | None = None
    train_samples: int | None = None
    batch_size: int | None = None
    max_steps: int | None = None
    steps_per_epoch: int | None = None
    processes: int = 1


class Objective(Record):
    """The goal of the search."""

    metric: str | None
    mode: Literal["max", "min"]
    target: float | None
    target_source: Literal["user", "baseline"]
    tolerance: float
    min_gain: float
    price_per_hour: float | None = None

    @property
    def has_target(self) -> bool:
        """Whether a value of the metric is to be reached; else what counts is the time for the same steps."""
        return self.metric is not None and self.target is not None

    @property
    def users_target(self) -> float | None:
        """The value that the user gave; None where there is none, or the baseline's stands for it."""
        return self.target if self.target_source == "user" else None


class BreakEven(Record):
    """How many planned runs pay for the search."""

    search_seconds: float
    runs: float | None = None


class Stop(Record):
    """Why the search ended."""

    reason: StopReason
    detail: str = ""


class Advice(Record):
    """A change that only the user can make. ``share``: of a step, as it was measured; None where it was not.

    ``seconds``: of the whole planned run, where the advice is on one of its most expensive places.
    """

    title: str
    evidence: str
    share: float | None = None
    seconds: float | None = None
    file: str | None = None
    line: int | None = None
    suggestion: str


class Snippets(Record):
    """A kept change as a user would write it, per way of training. ``None``: cannot be expressed there."""

    strategy: str
    setting: JsonDict = field(default_factory=dict)
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


class Spent(Record):
    """Seconds of a run that went on one thing, such as ``comparing candidates`` or ``quality``."""

    on: str
    seconds: float


class Result(Record):
    """result.json, the only thing that the report reads.

    ``decided``: every strategy of which a candidate was measured, with what it came to over all of them.
    ``quality``: the final plan's trainings against the baseline's, from the verification. ``sites``, ``patch``: of
    a script as it is; None for a function that describes the run. ``scaling``: with processes, where the best trains in
    several. ``spent``: what its seconds went on; ``more_budget``: what more of them would buy, empty where time held
    nothing back. ``tuning``: of ``--tune``. ``sharing``: with ``--parallel``, what neighbours cost each incumbent.
    ``model_scaling``: of models of several sizes, where others than the workload's own were tried. ``account``: the
    blocks that every speed and ratio rests on, one line each in account.csv.
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
    decided: tuple[Decided, ...] = ()
    stop: Stop
    advice: tuple[Advice, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    snippets: tuple[Snippets, ...] = ()
    reproduce: Reproduce = field(default_factory=Reproduce)
    not_measured: tuple[str, ...] = ()
    quality: Quality | None = None
    sites: Sites | None = None
    patch: ScriptPatch | None = None
    scaling: Scaling | None = None
    sharing: tuple[Sharing, ...] = ()
    spent: tuple[Spent, ...] = ()
    more_budget: str = ""
    tuning: Tuning | None = None
    model_scaling: ModelScaling | None = None
    account: Account | None = None

    @property
    def fitted(self) -> bool:
        """Whether the workload as it is did not fit in memory: the baseline is then a plan under which it does.

        Training in as many processes as were asked for is no such plan.
        """
        return any(change.strategy != "ddp" for change in self.baseline.plan.changes)

    @property
    def found(self) -> tuple[Change, ...]:
        """The changes that the best has and the baseline has not."""
        return tuple(change for change in self.best.plan.changes if change not in self.baseline.plan.changes)


class Prediction(Record):
    """A strategy's expectation of one setting, before anything is tried, or why it does not apply.

    ``how``: of a script, what becomes of the change in a patch, and ``file`` and ``line`` of its hunk.
    """

    strategy: str
    setting: JsonDict = field(default_factory=dict)
    predicted: Estimate | None = None
    applies: bool = True
    reason: str = ""
    how: Literal["patched", "plan only", "by hand"] | None = None
    file: str | None = None
    line: int | None = None


class Profiled(Record):
    """Findings of a profiler of ``profile --with``. ``file``: the one that it wrote; ``lines``: its summary."""

    tool: str
    file: str | None = None
    lines: tuple[str, ...] = ()

    def summary(self) -> tuple[str, ...]:
        """The summary under its title."""
        return (f"{self.tool}: {self.file or 'no file'}", *(f"  {line}" for line in self.lines))


class Profile(Record):
    """The document of ``autoopt profile``: where the time goes, the ceilings, and what to expect.

    ``profilers``: those that were asked for as well; files are relative to the run directory where they lie in it.
    ``drift``: of ``--watch``; None where nobody asked.
    """

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
    reproduce: Reproduce = field(default_factory=Reproduce)
    profilers: tuple[Profiled, ...] = ()
    drift: Drift | None = None
    sites: Sites | None = None
