"""A plan with all that was measured of it: the ``CONFIGURATION`` of result.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from autoopt.records import Configuration, Environment, Estimate, Peaks, Plan
from autoopt.records.messages import TrainingRun
from autoopt.search.compare.comparison import Side
from autoopt.search.compare.side_statistics import percentiles
from autoopt.simplify.stage_profile import StageProfile


def configuration(
    plan: Plan,
    environment: Environment,
    *,
    profile: StageProfile | None = None,
    side: Side | None = None,
    runs: tuple[TrainingRun, ...] = (),
    time_to_target: Estimate | None = None,
    source: Literal["measured", "modelled"] = "measured",
    price_per_hour: float | None = None,
    processes: int = 1,
) -> Configuration:
    """Puts together what trials of one plan showed; what none showed is None.

    Args:
        profile: the plan from the inside; gives FLOP/s and CPU utilization.
        side: the plan in an interleaved comparison, the better source of step times.
        runs: its trainings to the target.
        time_to_target: seconds, with interval.
        source: of these seconds.
        price_per_hour: of the device.
        processes: that a script's launcher starts.
    """
    reached = [run for run in runs if run.reached]
    last = runs[-1].curve.points[-1].metric if runs and runs[-1].curve.points else None
    step = side.step_seconds if side and side.step_seconds else None
    rate = side.samples_per_second if side else None
    if profile is not None:
        step = step or percentiles(list(profile.block.step_seconds))
        if rate is None and profile.block.samples is not None:
            rate = profile.block.samples / profile.block.seconds
    flops = _flops(profile)
    return Configuration(
        plan=plan,
        samples_per_second=rate,
        step_seconds=step,
        time_to_target_seconds=time_to_target,
        time_to_target_source=source if time_to_target else None,
        fixed_seconds=_median([run.fixed_seconds for run in runs])
        or (profile.startup.fixed_seconds if profile else None),
        evaluation_seconds=_median([run.evaluation_seconds for run in runs]),
        steps_to_target=_steps(reached),
        trained_steps=_steps(runs),
        metric=last,
        peak_memory_bytes=_most([side, *runs, profile.block if profile else None], "peak_memory_bytes"),
        peak_host_memory_bytes=_most([side, *runs, profile.block if profile else None], "peak_host_memory_bytes"),
        trained_parameters=runs[-1].trained_parameters if runs else None,
        device_utilization=profile.monitor.get("device_utilization") if profile else None,
        cpu_utilization=_cpu(profile, environment),
        flops_per_second=flops,
        mfu=_mfu(flops, environment.peaks),
        energy_joules_per_step=profile.joules_per_step if profile else None,
        cost_to_target=_cost(max(plan.processes, processes), environment, price_per_hour, time_to_target),
        curves=tuple(run.curve for run in runs),
    )


def _cost(processes: int, environment: Environment, price: float | None, seconds: Estimate | None) -> float | None:
    """Cost of the devices until the target: each process has one of its own, but for those that share a CPU."""
    if not price or seconds is None:
        return None
    devices = 1 if environment.device == "cpu" else processes
    return price * devices * seconds.value / 3600


def best_matmul(peaks: Peaks) -> float | None:
    """The highest matrix-multiplication rate that was measured, in FLOP/s."""
    rates = [
        peaks.matmul_fp32_flops_per_second,
        peaks.matmul_tf32_flops_per_second,
        peaks.matmul_bf16_flops_per_second,
        peaks.matmul_fp16_flops_per_second,
    ]
    return max((rate for rate in rates if rate), default=None)


def _flops(profile: StageProfile | None) -> float | None:
    if profile is None or not profile.flops_per_step:
        return None
    return profile.flops_per_step * profile.block.steps / profile.block.seconds


def _mfu(flops: float | None, peaks: Peaks) -> float | None:
    peak = best_matmul(peaks)
    return flops / peak if flops and peak else None


def _cpu(profile: StageProfile | None, environment: Environment) -> float | None:
    if profile is None or profile.block.cpu_seconds is None or not environment.cores:
        return None
    return min(1.0, profile.block.cpu_seconds / (profile.block.seconds * environment.cores))


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _steps(runs: Sequence[TrainingRun]) -> int | None:
    steps = [run.curve.steps_to_target or run.steps for run in runs]
    return int(np.median(steps)) if steps else None


def _most(sources: list[object], name: str) -> int | None:
    values = [getattr(source, name, None) for source in sources if source is not None]
    return max((value for value in values if value is not None), default=None)
