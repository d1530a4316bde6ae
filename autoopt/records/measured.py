"""Documents of what is measured: configurations, trials, quality, noise."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from autoopt.records.base import Change, Estimate, Plan, Verdict
from autoopt.records.headline import Headline
from autoopt.records.machine import disturbed
from autoopt.records.record import JsonDict, Record


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


class Curve(Record):
    """A training run as its evaluations saw it."""

    seed: int
    points: tuple[CurvePoint, ...] = ()
    reached: bool | None = None
    seconds_to_target: float | None = None
    steps_to_target: int | None = None

    @property
    def spacing(self) -> float:
        """Steps from one evaluation to the next, on average; 0 without any."""
        return self.points[-1].step / len(self.points) if self.points else 0.0


class Configuration(Record):
    """A plan and what was measured of it."""

    plan: Plan
    samples_per_second: float | None = None
    step_seconds: Percentiles | None = None
    time_to_target_seconds: Estimate | None = None
    fixed_seconds: float | None = None
    evaluation_seconds: float | None = None
    steps_to_target: int | None = None
    trained_steps: int | None = None
    metric: float | None = None
    peak_memory_bytes: int | None = None
    trained_parameters: int | None = None
    peak_host_memory_bytes: int | None = None
    device_utilization: float | None = None
    cpu_utilization: float | None = None
    flops_per_second: float | None = None
    mfu: float | None = None
    energy_joules_per_step: float | None = None
    cost_to_target: float | None = None
    curves: tuple[Curve, ...] = ()


QualityLevel = Literal["identical", "equivalent", "trained", "undecided"]
"""How well it is known that training is as good as before (docs/explanation/quality.md)."""


class Quality(Record):
    """Findings of the quality gate. ``difference`` is candidate less baseline in the metric's unit.

    ``level``: how it is known that nothing was lost; None where something was, or nothing was examined.
    ``rests_on``: what was compared to know it; ``would_miss``: what would not have been noticed by that.
    ``gradient_error``, ``gradient_bias``: of the worst point, over the spread of gradients between batches.
    ``bias_bound``: upper bound of the bias over the mean gradient, at the worst point, from so many ``batches``;
    ``batches_wanted``: how many would decide it, where it is undecided. ``step_penalty``: factor on the steps that the
    unbiased error costs, or of further steps to the target in trainings; the speedup of a step is divided by it.
    ``detectable_loss``: the loss of the metric, in tolerances, that would have been noticed with 80 %;
    ``seeds_wanted``: seeds that would decide it.
    """

    method: Literal["losses", "loss_path", "probe", "metric", "not_tested"]
    level: QualityLevel | None = None
    passed: bool | None = None
    metric: str | None = None
    baseline: float | None = None
    candidate: float | None = None
    difference: Estimate | None = None
    margin: float | None = None
    largest_loss_difference: float | None = None
    steps: int | None = None
    seeds: int | None = None
    gradient_error: float | None = None
    gradient_bias: float | None = None
    bias_bound: float | None = None
    batches: int | None = None
    batches_wanted: int | None = None
    step_penalty: Estimate | None = None
    detectable_loss: float | None = None
    seeds_wanted: int | None = None
    rests_on: str = ""
    would_miss: str = ""
    detail: str = ""


class Trial(Record):
    """One thing that was tried, or why it was not.

    ``base`` is ``"baseline"`` or the id of the trial whose change made the incumbent. ``measured_again``: speedup of
    throughput by a kept change from fresh processes thereafter, in the final plan or by the verification; its own
    ``throughput`` is what it was kept for, and so reads high. None where it was not measured again. ``believed``: the
    speedup by its prediction and all comparisons of plans with its change; None for several changes. ``planned_steps``:
    of the planned run that ``time_to_target`` is of; None where it is of a run to the target.
    """

    id: int
    round: int
    strategy: str
    setting: JsonDict = field(default_factory=dict)
    companions: tuple[Change, ...] = ()
    base: str = "baseline"
    verdict: Verdict
    reason: str = ""
    risk: str | None = None
    predicted: Estimate | None = None
    believed: Estimate | None = None
    throughput: Estimate | None = None
    measured_again: Estimate | None = None
    time_to_target: Estimate | None = None
    planned_steps: int | None = None
    quality: Quality | None = None
    peak_memory_bytes: int | None = None
    trained_parameters: int | None = None
    seconds: float | None = None
    log: str | None = None
    ratios: tuple[float, ...] = ()
    samples_per_second: float | None = None
    finished_at: float | None = None


class Ablation(Record):
    """Worth of a kept change: the final plan against itself without it, and it alone on the baseline.

    ``beside``: other changes that were in the plan when ``without`` was measured, and were dropped thereafter.
    """

    strategy: str
    setting: JsonDict = field(default_factory=dict)
    without: Estimate | None = None
    alone: Estimate | None = None
    beside: tuple[str, ...] = ()


class Decided(Record):
    """The outcome of a strategy over all its trials and the ablation.

    ``verdict``: None where nothing decided it, whether it is a part of the plan or not; ``by``: what did, or how far it
    came.
    """

    strategy: str
    verdict: Verdict | None = None
    by: str = ""


class Noise(Record):
    """The A/A control: the baseline against itself. ``floor``: the gain below which nothing is believed.

    ``process_sd``: how much two processes of one program differ (standard deviation of the log ratio),
    ``process_dof``: how many independent pairs of processes that rests on; ``block_sd``: how much one
    pair of blocks scatters inside a pair of processes. ``foreign_cores``: of the machine that other programs used
    during the control, and in a result during all comparisons; None where the system does not count them.
    """

    aa_ratio: Estimate | None = None
    floor: float | None = None
    ratios: tuple[float, ...] = ()
    seed_noise: float | None = None
    process_sd: float | None = None
    process_dof: float | None = None
    block_sd: float | None = None
    foreign_cores: float | None = None

    @property
    def busy(self) -> bool:
        """Whether other programs slowed this down, and a plan the more the more threads it has."""
        return disturbed(self.foreign_cores)

    def failed(self, gain: float) -> bool:
        """Whether the control excludes 1.00 by more than the gain worth having: the machine favours one side."""
        control = self.aa_ratio
        return control is not None and (control.low > 1.0 + gain or control.high < 1.0 / (1.0 + gain))


class Speedup(Record):
    """The final plan against the baseline.

    ``headline``: the one record of which the first screen is; None where nothing was measured, and in documents of
    earlier versions. The other fields agree with it: ``trained`` is the speedup of whole trainings, each side with its
    own seconds; ``time_to_target`` the same figure, or the modelled one where there were no trainings, and None where
    only a step is known. With one pair their interval is the prior's alone. ``throughput``: of steps in interleaved
    blocks. ``planned_steps``: of the planned run that ``time_to_target`` and the seconds of both plans are of; None
    where they are of a run to the target.
    """

    headline: Headline | None = None
    time_to_target: Estimate | None = None
    planned_steps: int | None = None
    trained: Estimate | None = None
    throughput: Estimate | None = None
    end_to_end_verified: bool = False
    detail: str = ""


class Sharing(Record):
    """A plan's throughput next to neighbours that train the same, over that of the same process with them stopped.

    ``places``: where the processes ran; ``beside``: the ratio of each, None where it was not measured. ``floor``: the
    noise floor of the run, which the effect is held against. ``allowed``: candidates are examined side by side on this
    plan; ``reason``: why, or why not.
    """

    plan: Plan = Plan()
    places: tuple[str, ...] = ()
    beside: tuple[Estimate | None, ...] = ()
    floor: float | None = None
    allowed: bool = False
    reason: str = ""
    seconds: float = 0.0
