"""Ceilings: the theoretical best of each stage and operator from the machine's measured peaks. Pure."""

from __future__ import annotations

from autoopt.records import Operator, Peaks
from autoopt.simplify.pipeline import LINK, Pipeline
from autoopt.simplify.stage_timings import StageTimings

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
PRODUCT = 1024
"""Rows of the square product that tells how near to its peak the machine is just now, on all of its cores."""
USEFUL_CONCURRENCY = 32
_OWN = ("preparation", "storage")
"""Ceilings that follow from the workload's own seconds, and from no peak."""


def stage_ceilings(timings: StageTimings, peaks: Peaks) -> dict[str, float]:
    """Seconds per optimizer step by stage; a stage whose ceiling is not known is left out.

    Preparation: its CPU seconds over all cores. Storage: waiting over the reads that a storage is commonly
    asked for at once. Collate and pinning: bytes over the
    host's bandwidth. Copies and the optimizer: bytes over bandwidth. Forward and backward: arithmetic at the best
    allowed precision. Host: nothing, since all of it can be compiled away.
    """
    samples = timings.batch_size * timings.accumulation
    found: dict[str, float] = {"host": 0.0}
    inputs, speed = timings.inputs, bandwidth(peaks)
    host = host_bandwidth(peaks, timings.device, timings.batch_bytes or None)
    batches = timings.batch_bytes * timings.accumulation
    if inputs.sample:
        cpu = inputs.sample.cpu_seconds if inputs.sample.cpu_seconds is not None else inputs.sample.seconds
        found["preparation"] = cpu * samples / timings.cores
        found["storage"] = (inputs.sample.wait_seconds or 0.0) * samples / USEFUL_CONCURRENCY
    if host:
        found["collate"] = batches / host / timings.cores
        found["pin"] = batches / host
    if speed:
        # what is moved lies in at least half as many bytes, of which the caches keep as much as they do of those
        found["optimizer"] = timings.optimizer_bytes / (bandwidth(peaks, timings.optimizer_bytes / 2 or None) or speed)
        found["checkpoint"] = 0.0
    found |= _copy(timings, peaks)
    found |= _compute(timings, peaks)
    faster = _faster(timings, peaks)
    return {name: seconds * (1.0 if name in _OWN else faster) for name, seconds in found.items()}


def _faster(timings: StageTimings, peaks: Peaks) -> float:
    """Below 1 where the machine is faster now than it was when its peaks were measured, which then are none."""
    if not timings.reference or not peaks.pace_seconds:
        return 1.0
    return min(1.0, timings.reference / peaks.pace_seconds)


def _copy(timings: StageTimings, peaks: Peaks) -> dict[str, float]:
    """On the CPU there is nothing to copy."""
    rate = peaks.copy_pinned_to_device_bytes_per_second
    if timings.device == "cpu":
        return {"copy": 0.0}
    return {"copy": timings.batch_bytes * timings.accumulation / rate} if rate else {}


def _compute(timings: StageTimings, peaks: Peaks) -> dict[str, float]:
    """Forward and backward, and evaluation at the forward's rate."""
    both = fused_ceiling(timings.operators, peaks, timings.allowed_precisions)
    if both is None or matmul_peak(peaks, timings.allowed_precisions) is None:
        return {}
    share = timings.operators_forward_share if timings.operators_forward_share is not None else 1 / 3
    found = {
        "forward": both * share * timings.accumulation,
        "backward": both * (1 - share) * timings.accumulation,
    }
    if timings.evaluation_samples and timings.evaluate_every:
        each = both * share / timings.batch_size
        found["evaluate"] = each * timings.evaluation_samples / timings.evaluate_every
    return found


def of_peak(timings: StageTimings, peaks: Peaks) -> float:
    """Share of its peak at which the machine worked while the compute was measured; 1 where that is not known.

    Of a peak that was reached in the best moment a shared machine gives less in most others, whatever it computes.
    """
    peak, seconds = peaks.matmul_fp32_flops_per_second, timings.product_seconds
    if not peak or not seconds:
        return 1.0
    return min(1.0, 2.0 * PRODUCT**3 / seconds / peak)


def ceiling_step(pipeline: Pipeline, timings: StageTimings, peaks: Peaks) -> float | None:
    """The best step that the stages' ceilings allow; never above the measured one, which would prove it wrong."""
    ceiling = uncapped_ceiling_step(pipeline, timings, peaks)
    return None if ceiling is None else min(ceiling, pipeline.step_seconds)


def uncapped_ceiling_step(
    pipeline: Pipeline, timings: StageTimings, peaks: Peaks, of_peak: float = 1.0
) -> float | None:
    """The best step when everything that can overlap does, from the ceilings as they were computed.

    Args:
        of_peak: share of their peak that products reach just now.

    On the CPU, preparation and compute share the cores, so that their best times add up.
    """
    present = {stage.name for stage in pipeline.stages}
    best = {name: value for name, value in stage_ceilings(timings, peaks).items() if name in present}
    if "forward" not in best or "backward" not in best:
        return None
    compute = (best["forward"] + best["backward"]) / of_peak + best.get("optimizer", 0.0)
    preparation = best.get("preparation", 0.0) + best.get("collate", 0.0)
    link = max((best.get(name, 0.0) for name in LINK), default=0.0)
    together = preparation + compute if timings.device == "cpu" else max(preparation, compute)
    return max(together, best.get("storage", 0.0), link)


def matmul_peak(peaks: Peaks, precisions: tuple[str, ...] = PRECISIONS) -> float | None:
    """The best measured matmul rate among the allowed precisions, FLOP/s."""
    rates = [getattr(peaks, f"matmul_{name}_flops_per_second") for name in precisions]
    return max((rate for rate in rates if rate), default=None)


def bandwidth(peaks: Peaks, size: float | None = None) -> float | None:
    """The best rate at which ``size`` bytes can move: caches serve small pieces faster than memory does."""
    return _bandwidth(peaks.memory_bytes_per_second, peaks.memory_bytes_per_second_by_size, size)


def host_bandwidth(peaks: Peaks, device: str, size: float | None = None) -> float | None:
    """The same of the host's memory, in which batches are collated and pinned whatever the device."""
    if device == "cpu":
        return bandwidth(peaks, size)
    return _bandwidth(peaks.host_memory_bytes_per_second, peaks.host_memory_bytes_per_second_by_size, size)


def _bandwidth(large: float | None, table: dict[int, float], size: float | None) -> float | None:
    rates = [large or 0.0]
    rates += [rate for at, rate in table.items() if size is not None and at >= size / 2] if table else []
    best = max(rates)
    return best or None


def operator_ceiling(operator: Operator, peaks: Peaks, precisions: tuple[str, ...]) -> float | None:
    """The roofline of an operator as it stands: the larger of arithmetic at its best precision and traffic."""
    rate = matmul_peak(peaks, precisions)
    each = (operator.bytes or 0.0) / max(operator.calls or 1, 1)
    speed = bandwidth(peaks, each)
    if speed is None or (operator.flops and rate is None):
        return None
    halved = 0.5 if set(precisions) & {"bf16", "fp16"} else 1.0
    return max((operator.flops or 0.0) / (rate or 1.0), (operator.bytes or 0.0) * halved / speed)


def fused_ceiling(found: tuple[Operator, ...], peaks: Peaks, precisions: tuple[str, ...]) -> float | None:
    """The step's best: arithmetic of the matmul-like operators alone.

    Traffic between operators is left out, since fusing removes it and caches hide it; what is left no
    program that does the same arithmetic can beat.
    """
    rate = matmul_peak(peaks, precisions)
    if rate is None or not found:
        return None
    return sum(operator.flops or 0.0 for operator in found) / rate
