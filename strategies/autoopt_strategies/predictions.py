"""Predictions of several strategies: what-ifs of the pipeline, and what is known of a case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoopt import Case, Estimate

COMPUTE = ("forward", "backward")
PATIENCE = 0.25
"""Share of the time left for the search that preparing a dataset once may take: each process pays it."""
LEAST_SHARE = 0.01
"""Of a step, as the smallest gain that is asked for: what takes less is not worth a setting."""
LEAST_SAVING = 0.03
"""Of what is timed: a few timings alternately tell no smaller difference, and predictions are no better."""
FASTER = 1.05
"""A precision whose matmul peak is not this much above another's cannot pay for its casts."""
PRESSED = 0.5
"""Share of the device memory from which on room, such as for a batch twice as large, is worth seconds."""
OF_CONVOLUTIONS = 0.5
"""The most of their time that another layout or algorithm is expected to save (1.37x seen on a small net on a CPU)."""
READING = ("storage", "preparation", "collate")
"""Stages that make the samples of a batch, one after the other."""


def gain(case: Case, seconds: Mapping[str, float], **changes: int | None) -> Estimate | None:
    """The pipeline's what-if with only those stages that it has; None without a pipeline or without a change."""
    if case.pipeline is None:
        return None
    known = {name: value for name, value in seconds.items() if case.pipeline.stage(name) is not None}
    if not known and not any(value is not None for value in changes.values()):
        return None
    return case.pipeline.gain(known, **changes)


def simulated(case: Case) -> Any:
    """What the pipeline's simulation rests on; None where it was not measured."""
    return case.pipeline.round.simulation if case.pipeline is not None else None


def seconds_of(case: Case, name: str) -> float:
    """Seconds of a stage per step; 0 where the pipeline does not have it."""
    stage = case.pipeline.stage(name) if case.pipeline is not None else None
    return stage.seconds if stage is not None else 0.0


def sample_seconds(case: Case) -> float | None:
    """Seconds that one process takes to prepare a sample of the training; None before that was measured."""
    found = [stage for stage in (case.pipeline.stages if case.pipeline is not None else ()) if stage.name in READING]
    batch = case.workload.batch_size
    return sum(stage.seconds * stage.parallel for stage in found) / batch if found and batch else None


def batch_now(case: Case) -> tuple[int, int]:
    """Samples of a micro-batch of the incumbent, and how many of them make a step."""
    batch = case.setup.batch
    return batch.size or case.workload.batch_size or 1, batch.accumulation or case.workload.accumulation


def compute_threads(case: Case) -> int:
    """Threads that compute on the CPU."""
    return int(case.setup.flags.get("threads") or case.environment.threads or case.environment.cores or 1)


def tried_or_at_most(case: Case, ratio: float | None, saved: float | None) -> Estimate | None:
    """The what-if of forward and backward at a ratio that was tried on copies; else the most that is possible.

    Args:
        saved: their share that goes at the very best; None where it is not known.
    """
    if ratio is not None:
        return tried_gain(case, ratio)
    return None if saved is None else at_most(compute_gain(case, 1.0 - saved))


def ratio_there(case: Case, name: str) -> float | None:
    """What a strategy's change of the model was tried to bring, in the precision that a plan computes in."""
    found = case.inspected(name)
    low = found.get("ratio_low") if case.setup.precision.dtype else None
    return low or found.get("ratio")


def issued(case: Case, *, passes: float = 1.0, update: float = 1.0) -> dict[str, float]:
    """The ``host`` stage of a device, on which issuing forward and backward, and the update, takes another share.

    A step of many short kernels is as long as issuing them takes, so that fewer launches shorten it where a faster
    device would not. Empty on the CPU, which has nothing to issue.

    Args:
        passes: seconds to issue forward and backward, over those now.
        update: seconds to issue the optimizer's update, over those now.
    """
    simulation = simulated(case)
    if simulation is None or simulation.device == "cpu":
        return {}
    whole = seconds_of(case, "host")
    part = min(whole, simulation.update_issue_seconds or 0.0)
    return {"host": (whole - part) * passes + part * update}


def busy_share(case: Case) -> float:
    """Share of forward and backward in which a device computes; 1 on the CPU, and where that is not known.

    Alone and timed to their end they take as long as issuing them where their kernels are shorter than that.
    """
    if case.pipeline is None or case.device == "cpu":
        return 1.0
    both = seconds_of(case, "forward") + seconds_of(case, "backward")
    kernels = sum(operator.seconds for operator in case.pipeline.round.operators)
    if not kernels or both <= 0:
        return 1.0
    return min(1.0, kernels * getattr(simulated(case), "accumulation", 1) / both)


def compute_gain(case: Case, ratio: float) -> Estimate | None:
    """The pipeline's what-if with forward and backward at this ratio of what they take."""
    return gain(case, {name: seconds_of(case, name) * ratio for name in COMPUTE})


def tried_gain(
    case: Case,
    ratio: float | Mapping[str, float] | None,
    stages: Iterable[str] = COMPUTE,
    others: Mapping[str, float] | None = None,
) -> Estimate | None:
    """The pipeline's what-if with stages at a ratio that was tried, on copies or on real samples.

    Where a device waits for launches, the ratio of forward and backward is that of issuing them.

    Args:
        ratio: of all the stages, or by stage; None where it was not tried, of which nothing is predicted.
        stages: where one ratio holds for all.
        others: seconds of further stages that change with them.
    """
    if ratio is None:
        return None
    ratios = ratio if isinstance(ratio, Mapping) else dict.fromkeys(stages, ratio)
    both = sum(seconds_of(case, name) for name in COMPUTE if name in ratios)
    if others is None and both > 0:
        mean = sum(seconds_of(case, name) * ratios[name] for name in COMPUTE if name in ratios) / both
        others = issued(case, passes=1.0 + (mean - 1.0) * (1.0 - busy_share(case)))
    changed = {name: seconds_of(case, name) * each for name, each in ratios.items()}
    estimate = gain(case, {**changed, **(others or {})})
    return None if estimate is None else estimate.as_kind("tried")


def of_convolutions(case: Case, *names: str) -> Estimate | None:
    """The most that another layout or algorithm saves of operators with these parts of names."""
    share = operator_share(case, names=names)
    return None if share is None else declared(at_most(compute_gain(case, 1 - share * OF_CONVOLUTIONS)))


def declared(estimate: Estimate | None) -> Estimate | None:
    """A what-if that rests on a share which nobody measured."""
    return None if estimate is None else estimate.as_kind("declared")


def guessed(low: float, high: float, value: float = 1.0) -> Estimate:
    """A prediction of a strategy's own, of what nobody measured."""
    return Estimate(value=value, low=low, high=high, n=1).as_kind("declared")


def per_sample(case: Case, times: float) -> float | None:
    """Forward and backward of a sample in a batch so many times as large, over those now.

    From twice the batch where that was measured: a part that is paid once and one for each sample. Else what
    launches cost is paid once.
    """
    simulation = simulated(case)
    if simulation is None:
        return None
    if simulation.doubled is not None:
        each = max(0.0, simulation.doubled - 1.0)
        return float(max(0.05, (1.0 + (times - 1.0) * each) / times))
    cost = case.environment.peaks.launch_seconds
    both = seconds_of(case, "forward") + seconds_of(case, "backward")
    if simulation.launches is None or cost is None:
        return None
    if not both:
        return 1.0
    launched = simulation.launches * getattr(simulation, "accumulation", 1) * cost
    return float(1 - min(0.95, launched / both) * (1 - 1 / times))


def peak_ratio(case: Case, kind: str) -> float | None:
    """The measured matmul peak of ``bf16``, ``fp16`` or ``tf32`` over that of float32 as it is used now."""
    peaks = case.environment.peaks
    full, rate = peaks.matmul_fp32_flops_per_second, getattr(peaks, f"matmul_{kind}_flops_per_second")
    if case.device == "cuda" and case.setup.precision.matmul in ("high", "medium"):
        full = peaks.matmul_tf32_flops_per_second or full
    return rate / full if rate and full else None


def memory_used(case: Case) -> float | None:
    """Share of the device's memory that training uses now; None where that is not known."""
    return getattr(simulated(case), "memory_used", None)


def memory_short(case: Case) -> bool:
    """Whether room is worth seconds: the incumbent does not fit, or is known to take half of the device's memory."""
    return not case.fits or (memory_used(case) or 0.0) >= PRESSED


def ranged(estimate: Estimate, value: float, low: float, high: float) -> Estimate:
    """The same kind of estimate with other numbers."""
    return estimate.model_copy(update={"value": value, "low": low, "high": high})


def at_most(estimate: Estimate | None) -> Estimate | None:
    """An upper bound as a prediction: whatever is possible may also fail to come."""
    if estimate is None:
        return None
    value = max(estimate.value, 1.0)
    return ranged(estimate, value, min(1.0, estimate.low), max(estimate.high, value))


def after_paying(case: Case, estimate: Estimate | None, seconds: float, least: float | None = None) -> Estimate | None:
    """A speedup of the step, less what is paid once in the planned run.

    Args:
        estimate: of the step alone.
        seconds: paid once.
        least: the least that it can be, for the upper end; ``seconds`` where None.
    """
    if estimate is None or case.pipeline is None or not case.planned_steps:
        return estimate
    run = case.planned_steps * case.pipeline.step_seconds
    paid = [seconds, seconds, seconds if least is None else least]
    value, low, high = (
        run / (run / ratio + once)
        for ratio, once in zip((estimate.value, estimate.low, estimate.high), paid, strict=True)
    )
    return ranged(estimate, value, min(low, value), max(high, value))


def operator_share(case: Case, kinds: Iterable[str] = (), names: Iterable[str] = ()) -> float | None:
    """The share of the operators' seconds that belongs to these kinds or names; None where none was measured.

    Args:
        kinds: such as ``matmul`` or ``elementwise``.
        names: parts of operators' names, such as ``softmax``.
    """
    if case.pipeline is None:
        return None
    found = case.pipeline.round.operators
    whole = sum(operator.seconds for operator in found)
    if whole <= 0:
        return None
    kinds, names = tuple(kinds), tuple(names)
    part = sum(
        operator.seconds for operator in found if operator.kind in kinds or any(name in operator.name for name in names)
    )
    return part / whole
